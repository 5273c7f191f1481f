"""Tests that a benchmark runs without and with huge pages, and says which it had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from refused_starts import own_shm

BENCH = Path(__file__).parents[2] / "bench"
NAMES = ["make_s", "index_gib", "adopt_s", "adopt_private_mib", "page_tables_mib", "quotas_s"]


@own_shm
def test_a_benchmark_runs_with_both_and_names_them() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "large_host.py"), "--json", "--both"],
        env=os.environ | {"BENCH_ENTRIES": "20000"},
        capture_output=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["shm"], line["name"]) for line in lines] == [
        (f"huge={huge}", name) for huge in ("never", "advise") for name in NAMES
    ]
    pages = [line["against"] for line in lines if line["name"] == "adopt_s"]
    assert all(text.startswith("16,384 pages") for text in pages)
