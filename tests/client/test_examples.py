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


def start(example: Path, socket: Path) -> subprocess.Popen[str]:
    environ = {**os.environ, "PAGETIER_SOCKET": str(socket)}
    command = [sys.executable, "-W", "error", str(example)]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Returns the exit code, the output and the errors of an example."""
    with process:
        output, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, output, errors


def test_the_code_in_the_readme_loads_what_it_stores(daemon: RunningDaemon, tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    program = tmp_path / "readme.py"
    program.write_text(f"{code}\nassert result.stored == 4 and cached == len(token_ids)\n")
    assert end(start(program, daemon.socket)) == (0, "", "")


def test_the_code_in_the_package_loads_what_it_stores(daemon: RunningDaemon, tmp_path: Path) -> None:
    lines = (pagetier.__doc__ or "").split("\n\n")[1].splitlines()
    assert len(lines) == 5
    text = "\n".join(line.removeprefix("    ") for line in lines)
    program = tmp_path / "package.py"
    program.write_text(f"{GIVEN}{text}\nassert cached_tokens == len(token_ids)\n")
    code, _, errors = end(start(program, daemon.socket))
    assert (code, errors) == (0, "")


def test_there_are_examples() -> None:
    assert {"store_and_load", "paged_engine", "async_copies", "hybrid_model"} <= {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_what_it_stored(example: Path, daemon: RunningDaemon) -> None:
    code, output, errors = end(start(example, daemon.socket))
    assert (code, errors) == (0, ""), output
    assert "equal" in output and " 0 stored" not in output
    code, output, _ = end(start(example, daemon.socket))
    assert code == 0 and " 0 stored" in output, "the pages are found in the second run"


def test_examples_fail_without_a_daemon(tmp_path: Path) -> None:
    """Each waits five seconds for a daemon, so they wait at the same time."""
    for process in [start(example, tmp_path / "no.sock") for example in EXAMPLES]:
        code, output, errors = end(process)
        assert code == 1 and errors.endswith("no daemon: start pagetierd first\n"), (process.args, errors)
        assert not output


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) < MOST_LINES
