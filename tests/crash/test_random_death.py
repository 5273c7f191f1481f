"""A minute of random death in all scenes; and proof that what is broken on purpose is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from oracle.checker import Kind
from storm.report import Report

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests/crash", "tests/support")
ENGINE_DEATHS, DAEMON_DEATHS = 300, 30
ROUND_S = 8
PATIENCE_S = 240

RUN = "import runpy; runpy.run_module('storm', run_name='__main__', alter_sys=True)"

# A rank says that its part is written, and has written half of it.
HALF_WRITTEN = """
from oracle.witness import Witness
whole = Witness.fill
def fill(self, reservation, keys, part):
    for page in reservation.granted:
        reservation.write(int(page), bytes(self.page_bytes // part.count // 2), part.index * self.page_bytes // part.count)
Witness.fill = fill
"""

# A writer is told that its pages are stored, and they were given up.
NEVER_PUBLISHED = """
from pagetier.client import Reservation, StoreResult
publish = Reservation.publish
def lose(self, pages=None):
    outcomes = bytes(self._codes)
    self.abandon()
    return StoreResult(outcomes)
Reservation.publish = lose
"""

# The daemon takes nothing back of who has died.
NOBODY_REAPED = """
from pagetier.daemon.reaper import Reaper
Reaper._reap = lambda self, slot: self._dead.pop(slot)
"""

# A new daemon begins with an empty arena.
COLD_START = """
import pagetier.daemon.main as daemon
from pagetier.shm.segments import Leftovers
opened = daemon.open_segments
daemon.open_segments = lambda settings, leftovers: opened(settings, Leftovers.DISCARD)
"""

# A pin is let go of while its page is still read.
UNPINNED = """
from oracle.witness import Witness
load = Witness.load
def late(self, match, keys, deadline=0.0):
    sizes = match.page_sizes
    entries, serials = match.entries, match.serials
    match.release()
    import time; time.sleep(0.02)
    return load(self, match, keys, deadline)
Witness.load = late
"""


def storm(folder: Path, *arguments: str, broken: str = "") -> subprocess.CompletedProcess[str]:
    """Runs one to its end, in a process of its own that nothing else was imported into."""
    path = os.pathsep.join(str(ROOT / name) for name in FOLDERS)
    environ = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", broken + RUN, "--report", str(folder), "--minutes", "0", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def report_in(folder: Path) -> Report:
    return msgspec.json.decode((folder / "report.json").read_bytes(), type=Report)


def test_nothing_is_lost_when_anything_dies_at_random(tmp_path: Path) -> None:
    done = storm(tmp_path, "--round", str(ROUND_S))
    assert done.returncode == 0, done.stderr
    report = report_in(tmp_path)
    assert report.violations == [] and report.rounds == 4
    assert report.engine_deaths >= ENGINE_DEATHS, done.stderr
    assert report.daemon_deaths >= DAEMON_DEATHS, done.stderr
    assert report.worker_deaths and report.pages_verified > 1000, done.stderr
    assert re.search(r"seed \d+", done.stderr)


@pytest.mark.parametrize(
    ("broken", "scene", "kinds"),
    [
        (HALF_WRITTEN, "roomy", {Kind.BYTES}),
        (NEVER_PUBLISHED, "roomy", {Kind.LOST}),
        (NOBODY_REAPED, "roomy", {Kind.LATE}),
        (COLD_START, "roomy", {Kind.LOST}),
        (UNPINNED, "tight", {Kind.BYTES}),
    ],
    ids=["half written", "never published", "nobody reaped", "cold start", "unpinned"],
)
def test_a_broken_promise_is_found_and_its_journals_are_kept(
    tmp_path: Path, broken: str, scene: str, kinds: set[Kind]
) -> None:
    done = storm(tmp_path, "--round", "3", "--scene", scene, broken=broken)
    report = report_in(tmp_path)
    assert done.returncode == 1, done.stderr
    assert kinds <= {violation.kind for violation in report.violations}, done.stderr
    assert list(Path(report.journals[0]).glob("*.journal"))
