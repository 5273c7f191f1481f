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
from load.shared_counters import Column, Ledger
from pagetier.shm._core import SLOTS

ROOT = Path(__file__).parents[2]
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
    code, told, beside = load("--seconds", str(SECONDS), "--requests", "20", *OTHERS_FIRST)
    assert code == 0 and not told["violations"] and not told["wrongs"], (told, beside)
    assert told["engines"] == SLOTS == len(told["stored"]) and told["refused"] == 0
    for pages in (told["stored"], told["loaded"]):
        assert min(pages) >= SHARE * np.mean(pages) > 0, told
    assert f"all {SLOTS} slots are taken" in told["refusal"]
    assert {latency["call"] for latency in told["latencies"] if latency["p50"]} == {"match", "reserve", "load", "store"}


def test_rejected_stores_that_fit_are_found() -> None:
    code, told, beside = load("--seconds", "1", "--requests", "1", "--engines", "8", *OTHERS_FIRST, broken=REFUSING)
    assert code == 1 and told["refused"] and any("refused" in wrong for wrong in told["wrongs"]), (told, beside)


def test_a_starving_engine_is_found() -> None:
    with Load(4, 1, 0) as judge:
        ledger = Ledger(4)
        for seat, pages in enumerate((100, 5, 100, 100)):
            ledger.add(seat, Column.STORED, pages)
            ledger.add(seat, Column.LOADED, 50)
        judge._judge_shares(ledger.numbers())
        assert len(judge._wrongs) == 1 and "engine 1 has 5 pages stored" in judge._wrongs[0]
