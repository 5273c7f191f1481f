"""Runs a minute of random deaths in all scenes, and proves that deliberate bugs are found."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from kill_points.instrumented_build import ROOT, built
from oracle.checker import Kind
from simulator.report import Report
from simulator.simulator_command import Done, simulate

CRASH = ("crash", "--minutes", "0")
ENGINE_DEATHS, DAEMON_DEATHS, DISK_READS = 300, 30, 10
UNTIL_ENOUGH = (f"--engine-deaths={ENGINE_DEATHS}", f"--daemon-deaths={DAEMON_DEATHS}", f"--disk-reads={DISK_READS}")
UNTIL_FOUND = (*CRASH, "--rounds=30", "--round=3")  # however long that takes on a busy machine

# A rank reports its part as written although it wrote only half of it.
HALF_WRITTEN = """
from oracle.witness import Witness
def fill(self, reservation, keys, part):
    share = self.page_bytes // part.count
    for page in reservation.granted:
        reservation.write(int(page), bytes(share // 2), part.index * share)
Witness.fill = fill
"""

# A new daemon begins with an empty arena.
COLD_START = """
import pagetier.daemon.main as daemon
from pagetier.shm.segments import Leftovers
opened = daemon.open_segments
daemon.open_segments = lambda settings, leftovers: opened(settings, Leftovers.DISCARD)
"""

# The daemon loses all pages on disk with each disk worker that dies.
DISK_LOST = """
import shutil
from pagetier.daemon.disk.worker_events import WorkerEvents
ended = WorkerEvents.ended
def forget(self, slot, why):
    shutil.rmtree(self.options.path)
    ended(self, slot, why)
WorkerEvents.ended = forget
"""


def report_in(folder: Path) -> Report:
    return msgspec.json.decode((folder / "report.json").read_bytes(), type=Report)


def found_in(done: Done, folder: Path) -> set[Kind]:
    """Returns the kinds of violations of a run that must have found one, and asserts that it kept the journals."""
    assert done.returncode == 1, done.stderr
    report = report_in(folder)
    assert list(Path(report.journals[0]).rglob("*.journal"))
    return {violation.kind for violation in report.violations}


def test_random_deaths_break_no_promise(tmp_path: Path) -> None:
    done = simulate(tmp_path, *CRASH, "--round=6", *UNTIL_ENOUGH)
    assert done.returncode == 0, done.stderr
    report = report_in(tmp_path)
    assert report.violations == [] and report.rounds >= 4
    assert report.engine_deaths >= ENGINE_DEATHS, done.stderr
    assert report.daemon_deaths >= DAEMON_DEATHS, done.stderr
    assert report.worker_deaths and report.responses["loaded"] > 1000, done.stderr
    through, behind = (report.scenes[name] for name in ("roomy, disk", "tight, disk"))
    assert through.pages["disk_written"] and through.disk_percent, done.stderr
    assert behind.pages["evicted"] and behind.pages["disk_read"] and behind.disk_percent, done.stderr
    assert re.search(r"seed \d+", done.stderr)


@pytest.mark.parametrize(
    ("broken", "kind"), [(HALF_WRITTEN, Kind.BYTES), (COLD_START, Kind.LOST)], ids=["half", "cold"]
)
def test_ranks_and_daemons_with_bugs_are_found(tmp_path: Path, broken: str, kind: Kind) -> None:
    done = simulate(tmp_path, *UNTIL_FOUND, "--scene=roomy", broken=broken)
    assert kind in found_in(done, tmp_path)


def test_a_disk_that_is_lost_with_its_worker_is_found(tmp_path: Path) -> None:
    done = simulate(tmp_path, *UNTIL_FOUND, "--scene=tight, disk", broken=DISK_LOST)
    assert Kind.LOST in found_in(done, tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("stress/abandoned-page-published", Kind.BYTES), ("crash/pins-of-the-dead-stay", Kind.INTEGRITY)],
)
def test_a_bug_in_the_core_is_found(tmp_path: Path, name: str, kind: Kind) -> None:
    core = built(ROOT / "tests" / "shm" / "stress" / "mutants" / f"{name}.patch")
    assert kind in found_in(simulate(tmp_path, *UNTIL_FOUND, "--scene=roomy", core=core), tmp_path)
