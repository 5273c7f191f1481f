"""Runs the commands of the simulator as `make` does, for a short time, and proves that deliberate bugs are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from compiled_library import library
from injection.instrumented_build import HERE, INJECT, ROOT, built
from oracle.checker import Kind
from oracle.journal import Reported
from pagetier.shm._core import SLOTS
from seeded_random import chance
from simulator.load import SHARE, Load, Shares
from simulator.report import Report
from simulator.scenes import SCENES, load_scene

pytestmark = pytest.mark.wall_clock
FOLDERS: Final = (ROOT / "tests" / "crash", ROOT / "tests" / "harness", ROOT / "bench")
RUN: Final = "import runpy; runpy.run_module('simulator', run_name='__main__', alter_sys=True)"
PATIENCE_S: Final = 900
CRASH: Final = ("crash", "--minutes=0")
THREE_ROUNDS: Final = ("--rounds=3", "--round=4")
ONE_HOST: Final = tuple(scene.name for scene in SCENES if not scene.fleet)
UNTIL_FOUND: Final = (*CRASH, "--rounds=30", "--round=3")  # however long that takes on a busy machine
SOAK: Final = ("soak", "--minutes=0.15")
LOAD: Final = ("load", "--nice=10")

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
from pagetier.daemon.disk.disk_device import DiskDevice
ended = DiskDevice.ended
def forget(self, slot, why):
    shutil.rmtree(self.options.path)
    ended(self, slot, why)
DiskDevice.ended = forget
"""

# The fleet's worker, a process of its own, publishes pages without verifying them.
UNVERIFIED = """
import os, pathlib, tempfile
folder = tempfile.mkdtemp(dir=os.environ["MUTANT"])
pathlib.Path(folder, "sitecustomize.py").write_text(
    "from pagetier.tiers.fleet.page_codecs import PlainCodec\\nPlainCodec.verify = lambda self, header, frames: True\\n"
)
os.environ["PYTHONPATH"] = folder + os.pathsep + os.environ["PYTHONPATH"]
"""

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

# Every store of each fourth engine is rejected.
REFUSING = """
from pagetier.daemon.index.reservations import Reservations, _refused
reserve = Reservations.reserve
Reservations.reserve = lambda self, slot, given: reserve(self, slot, given) if slot % 4 else _refused(given, "no")
Reservations.serve_message = lambda self, *given: False
"""


class Run:
    """A finished run of a command, in a new process, with its report in a folder.

    `broken` is a program with a bug that runs first; `core` is a folder that comes first on the path. What it draws is
    repeatable, as far as processes are.
    """

    def __init__(self, folder: Path, *arguments: str, broken: str = "", core: Path | None = None) -> None:
        self.seed = int(chance().integers(1 << 31))
        path = os.pathsep.join(map(str, [*([core] if core else []), *FOLDERS]))
        environ = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
        environ["MUTANT"] = str(folder)
        environ |= {"LD_PRELOAD": str(library(INJECT))} if core else {}  # defines the failpoints, which do nothing
        command = [sys.executable, "-c", broken + RUN, f"--seed={self.seed}", "--report", str(folder), *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        self.code, self.output = done.returncode, done.stderr
        (report,) = folder.glob("*.json")
        self.report = Report.read(report)
        self.kinds = {violation.kind for violation in self.report.violations}


def found_in(run: Run) -> set[Kind]:
    """Returns the kinds of violations of a run that must have found one, and asserts that it kept the journals."""
    assert run.code == 1, run.output
    assert list(Path(run.report.journals[0]).rglob("*.journal"))
    return run.kinds


def chosen_in(run: Run, policies: Iterable[str]) -> dict[str, int]:
    """Returns what the seed chose for the first three rounds: these policies, and the folders of the disk tier."""
    devices = map(int, re.findall(r"disk devices: (\d+)", run.output)[:3])
    return {**Counter(f"rounds, {policy}" for policy in policies), "disk devices": sum(devices)}


@pytest.mark.parametrize("scene", ONE_HOST)
def test_random_deaths_break_no_promise(
    tmp_path: Path, scene: str, record_property: Callable[[str, object], None]
) -> None:
    """Of three rounds, whose seeds follow each other, one has another eviction policy than the others.

    With a disk nothing dies before pages were written and read, so that fewer processes die.
    """
    engines, daemons = (30, 3) if "disk" in scene else (120, 12)
    enough = (f"--engine-deaths={engines}", f"--daemon-deaths={daemons}", f"--evictions={int('tight' in scene)}")
    run = Run(tmp_path, *CRASH, *THREE_ROUNDS, *enough, f"--scene={scene}")
    assert run.code == 0 and not run.kinds, run.output
    tally, tried = run.report.tally, run.report.scenes[scene]
    assert tally.rounds >= 3 and tally.engine_deaths >= engines and tally.daemon_deaths >= daemons, run.output
    assert tally.responses["loaded"] > 100, run.output
    assert ("disk" not in scene) or (tried.pages["disk_written"] and any(tried.disk_use)), run.output
    assert ("tight" not in scene) or tried.pages["evicted"], run.output
    assert re.search(r"seed \d+", run.output)
    policies = re.findall(r"evict.policy = (\w+)", run.output)
    assert {"lru", "cadence"} == set(policies), run.output
    record_property("counted", chosen_in(run, policies[:3]))


def test_random_deaths_on_two_hosts_with_a_fleet_break_no_promise(tmp_path: Path) -> None:
    enough = ("--round=4", "--engine-deaths=1", "--daemon-deaths=1", "--fleet-reads=1")
    run = Run(tmp_path, *CRASH, *enough, "--scene=fleet")
    assert run.code == 0 and not run.kinds, run.output
    tally = run.report.tally
    assert tally.pages["fleet read"] and tally.engine_deaths and tally.daemon_deaths, run.output
    assert tally.pages["objects damaged"], run.output


@pytest.mark.parametrize(
    ("broken", "scene", "kind"),
    [
        (HALF_WRITTEN, "roomy", Kind.BYTES),
        (COLD_START, "roomy", Kind.LOST),
        (DISK_LOST, "tight, disk", Kind.LOST),
        (UNVERIFIED, "fleet", Kind.BYTES),
    ],
    ids=[
        "ranks write half",
        "daemons start empty",
        "disks are lost with their workers",
        "a fleet's pages are not verified",
    ],
)
def test_a_process_with_a_bug_is_found(tmp_path: Path, broken: str, scene: str, kind: Kind) -> None:
    assert kind in found_in(Run(tmp_path, *UNTIL_FOUND, "--scene", scene, broken=broken))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("abandoned-page-published", Kind.BYTES), ("pins-of-the-dead-stay", Kind.INTEGRITY)],
)
def test_a_bug_in_the_core_is_found(tmp_path: Path, name: str, kind: Kind) -> None:
    core = built(HERE / "mutants" / f"{name}.patch")
    assert kind in found_in(Run(tmp_path, *UNTIL_FOUND, "--scene=roomy", core=core))


def test_a_short_soak_finds_no_violation_and_no_growth(tmp_path: Path) -> None:
    run = Run(tmp_path, *SOAK)
    # In so short a run other processes can make calls slower. test_trends.py tests that slower calls are found.
    assert run.kinds <= {Kind.SLOWER} and run.code == len(run.kinds), run.output
    assert run.report.tally.deaths and run.report.tally.bytes_verified, run.output
    calls = {latency.call for latency in run.report.results.latencies if latency.most}
    assert calls >= {"match", "reserve", "gather", "echo"}, run.output
    assert run.report.results.timeline["RssAnon, daemon, MiB"]
    assert list(tmp_path.glob("soak-*.md"))


def test_a_daemon_that_leaks_is_found(tmp_path: Path) -> None:
    run = Run(tmp_path, *SOAK, "--churn", broken=LEAK)  # one daemon, since growth is judged within a life
    # On a busy machine the daemon also becomes slower.
    assert run.code == 1 and Kind.GREW in run.kinds and run.kinds <= {Kind.GREW, Kind.SLOWER}, run.output
    grown = {growth.name for growth in run.report.results.growths if not growth.flat}
    assert {"descriptors, daemon", "RssAnon, daemon"} & grown, run.output


def test_engines_in_all_slots_store_and_load_without_starving(tmp_path: Path) -> None:
    run = Run(tmp_path, *LOAD, "--seconds=3", "--requests=20")
    assert run.code == 0 and not run.kinds and not run.report.tally.responses["refused"], run.output
    assert set(run.report.results.pages) == {"stored", "loaded"}
    for pages in run.report.results.pages.values():
        assert len(pages) == SLOTS and min(pages) >= SHARE * np.mean(pages) > 0, run.output
    assert any(f"all {SLOTS} slots are taken" in note for note in run.report.results.notes), run.output
    calls = {latency.call for latency in run.report.results.latencies if latency.p50}
    assert calls == {"match", "reserve", "load", "store"}


def test_rejected_stores_that_fit_are_found(tmp_path: Path) -> None:
    run = Run(tmp_path, *LOAD, "--seconds=1", "--requests=1", "--engines=8", broken=REFUSING)
    assert run.code == 1 and run.report.tally.responses["refused"] and Kind.REFUSED in run.kinds, run.output


def test_a_starving_engine_is_found() -> None:
    with Load(load_scene(4), 1, 1, lambda tally: None, requests=1) as judge:
        stored = {7: 100, 8: 5, 9: 100, 10: 100}
        judge.judge(Shares({Reported.STORED: stored, Reported.LOADED: dict.fromkeys(stored, 50)}, 0, []))
        (found,) = judge.tally.violations
        assert (found.kind, found.pid) == (Kind.STARVED, 8) and "5 pages stored, the mean is 76" in found.what
