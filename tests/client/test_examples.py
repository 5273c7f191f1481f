"""Every example runs against a real daemon, loads exact bytes and leaves its pages in the cache."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pagetier
from running_daemon import RunningDaemon

ARENA = "64MiB"
GIVEN = """\
import numpy as np
from pagetier import Client
kv_caches = [np.ones((2, 128, 16, 8, 128), np.float16) for _ in range(4)]
token_ids, block_table, other_block_table = range(1024), range(64), range(64, 128)
"""
README = Path(__file__).parents[2] / "README.md"
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
MOST_LINES = 40
LIMIT_S = 60


def run(example: Path, socket: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PAGETIER_SOCKET": str(socket)}
    command = [sys.executable, "-W", "error", str(example)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_the_code_in_the_readme_loads_what_it_stores(daemon: RunningDaemon, tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    program = tmp_path / "readme.py"
    program.write_text(f"{code}\nassert result.stored == 4 and cached == len(token_ids)\n")
    done = run(program, daemon.socket)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_code_in_the_package_loads_what_it_stores(daemon: RunningDaemon, tmp_path: Path) -> None:
    lines = (pagetier.__doc__ or "").split("\n\n")[1].splitlines()
    assert len(lines) == 5
    code = "\n".join(line.removeprefix("    ") for line in lines)
    program = tmp_path / "package.py"
    program.write_text(f"{GIVEN}{code}\nassert cached_tokens == len(token_ids)\n")
    done = run(program, daemon.socket)
    assert (done.returncode, done.stderr) == (0, "")


def test_there_are_examples() -> None:
    assert {"store_and_load", "paged_engine", "async_copies", "hybrid_model"} <= {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_what_it_stored(example: Path, daemon: RunningDaemon) -> None:
    first, second = (run(example, daemon.socket) for _ in range(2))
    assert (first.returncode, first.stderr) == (0, ""), first.stdout
    assert "equal" in first.stdout and " 0 stored" not in first.stdout
    assert second.returncode == 0 and " 0 stored" in second.stdout, "the pages are found in the second run"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fails_without_a_daemon(example: Path, tmp_path: Path) -> None:
    done = run(example, tmp_path / "no.sock")
    assert done.returncode == 1 and done.stderr.endswith("no daemon: start pagetierd first\n")
    assert not done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) < MOST_LINES
