"""Runs as many engines as there are slots, all storing and loading."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from oracle.checker import Kind
from oracle.journal import Reported
from pagetier.shm._core import SLOTS
from simulator.load import SHARE, Load, Shares
from simulator.report import Report
from simulator.scenes import load_scene
from simulator.simulator_command import simulate

OTHERS_FIRST = "--nice=10"

# Every store of each fourth engine is rejected.
REFUSING = """
from pagetier.daemon.index.service import Service, _refused
reserve = Service.reserve
Service.reserve = lambda self, slot, request: reserve(self, slot, request) if slot % 4 else _refused(request, "no")
"""


def load(folder: Path, *arguments: str, broken: str = "") -> tuple[int, Report, str]:
    """Runs a load test and returns its exit code, its report and its standard error."""
    done = simulate(folder, "load", *arguments, OTHERS_FIRST, broken=broken)
    (path,) = folder.glob("load-*.json")
    return done.returncode, msgspec.json.decode(path.read_bytes(), type=Report), done.stderr


def test_engines_in_all_slots_store_and_load_without_starving(tmp_path: Path) -> None:
    code, report, beside = load(tmp_path, "--seconds=3", "--requests=20")
    assert code == 0 and not report.violations, beside
    assert set(report.results.pages) == {"stored", "loaded"}
    for pages in report.results.pages.values():
        assert len(pages) == SLOTS and min(pages) >= SHARE * np.mean(pages) > 0, beside
    assert any(f"all {SLOTS} slots are taken" in note for note in report.results.notes), beside
    assert {latency.call for latency in report.results.latencies if latency.p50} == {
        "match",
        "reserve",
        "load",
        "store",
    }


def test_rejected_stores_that_fit_are_found(tmp_path: Path) -> None:
    code, report, beside = load(tmp_path, "--seconds=1", "--requests=1", "--engines=8", broken=REFUSING)
    assert code == 1 and report.responses["refused"], beside
    assert Kind.REFUSED in {violation.kind for violation in report.violations}, beside


def test_a_starving_engine_is_found() -> None:
    with Load(load_scene(4), 1, 1, lambda tally: None, requests=1) as judge:
        stored = {7: 100, 8: 5, 9: 100, 10: 100}
        judge.judge(Shares({Reported.STORED: stored, Reported.LOADED: dict.fromkeys(stored, 50)}, 0, []))
        (found,) = judge.tally.violations
        assert (found.kind, found.pid) == (Kind.STARVED, 8) and "5 pages stored, the mean is 76" in found.what
