"""Runs a soak of 15 s, and proves that a real leak is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parents[3]
FOLDERS = (ROOT / "tests" / "crash", ROOT / "tests" / "harness", ROOT / "bench")
PATIENCE_S = 300
MINUTES = 0.15

RUN = "import runpy; runpy.run_module('soak', run_name='__main__', alter_sys=True)"

# Each attach costs the daemon two descriptors and 4 MiB for ever.
LEAK = """
import os
from pagetier.daemon.index.service import Service
attached, kept = Service.attach, []
def attach(self, peer, request):
    kept.extend((os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY), bytearray(os.urandom(4 << 20))))
    return attached(self, peer, request)
Service.attach = attach
"""


def soak(folder: Path, broken: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a soak to its end, in a new process."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, FOLDERS)), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", broken + RUN, "--minutes", str(MINUTES), "--report", str(folder)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def report_in(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("soak-*.json")
    report: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return report


def grown(report: dict[str, Any]) -> set[str]:
    return {growth["name"] for growth in report["growths"] if growth["proven"] > growth["limit"]}


def test_a_short_soak_finds_no_violation_and_no_growth(tmp_path: Path) -> None:
    done = soak(tmp_path)
    assert done.returncode == 0, done.stderr
    report = report_in(tmp_path)
    assert report["violations"] == [] and report["deaths"] and report["bytes_verified"], done.stderr
    assert all(report["longest_ms"][call] for call in ("match", "reserve", "gather", "echo")), done.stderr
    assert list(tmp_path.glob("soak-*.svg")) and list(tmp_path.glob("soak-*.md"))


def test_a_daemon_that_leaks_is_found(tmp_path: Path) -> None:
    done = soak(tmp_path, LEAK)
    assert done.returncode == 1, done.stderr
    assert {"descriptors, daemon", "RssAnon, daemon"} & grown(report_in(tmp_path)), done.stderr
