"""Runs as many engines as there are slots, all storing and loading."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from load.load_run import SHARE, Load
from load.shared_counters import Column, SharedCounters
from pagetier.shm._core import SLOTS

ROOT = Path(__file__).parents[3]
FOLDERS = (ROOT / "tests" / "crash", ROOT / "tests" / "harness", ROOT / "bench")
PATIENCE_S = 300
SECONDS = 3
OTHERS_FIRST = ("--nice", "10")

RUN = "import runpy; runpy.run_module('load', run_name='__main__', alter_sys=True)"

# Every store of each fourth engine is rejected.
REFUSING = """
from pagetier.daemon.index.service import Service, _refused
reserve = Service.reserve
Service.reserve = lambda self, slot, request: reserve(self, slot, request) if slot % 4 else _refused(request, "no")
"""


def load(*arguments: str, broken: str = "") -> tuple[int, dict[str, Any], str]:
    """Runs a load test and returns its exit code, its JSON output and its standard error."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, FOLDERS)), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", broken + RUN, "--json", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout, done.stderr
    return done.returncode, msgspec.json.decode(done.stdout), done.stderr


def test_engines_in_all_slots_store_and_load_without_starving() -> None:
    code, outcome, beside = load("--seconds", str(SECONDS), "--requests", "20", *OTHERS_FIRST)
    assert code == 0 and not outcome["violations"] and not outcome["wrongs"], (outcome, beside)
    assert outcome["engines"] == SLOTS == len(outcome["stored"]) and outcome["refused"] == 0
    for pages in (outcome["stored"], outcome["loaded"]):
        assert min(pages) >= SHARE * np.mean(pages) > 0, outcome
    assert f"all {SLOTS} slots are taken" in outcome["refusal"]
    assert {latency["call"] for latency in outcome["latencies"] if latency["p50"]} == {
        "match",
        "reserve",
        "load",
        "store",
    }


def test_rejected_stores_that_fit_are_found() -> None:
    code, outcome, beside = load("--seconds", "1", "--requests", "1", "--engines", "8", *OTHERS_FIRST, broken=REFUSING)
    assert code == 1 and outcome["refused"] and any("rejected" in wrong for wrong in outcome["wrongs"]), (
        outcome,
        beside,
    )


def test_a_starving_engine_is_found() -> None:
    with Load(4, 1, 0) as judge:
        counters = SharedCounters(4)
        for seat, pages in enumerate((100, 5, 100, 100)):
            counters.add(seat, Column.STORED, pages)
            counters.add(seat, Column.LOADED, 50)
        judge._judge_shares(counters.numbers())
        assert len(judge._wrongs) == 1 and "engine 1 has 5 pages stored" in judge._wrongs[0]
