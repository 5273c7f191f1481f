"""Runs a soak of 15 s, and proves that a real leak is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from oracle.checker import Kind
from simulator.simulator_command import simulate

SOAK = ("soak", "--minutes=0.15")

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


def report_in(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("soak-*.json")
    report: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return report


def grown(report: dict[str, Any]) -> set[str]:
    return {growth["name"] for growth in report["results"]["growths"] if growth["proven"] > growth["limit"]}


def test_a_short_soak_finds_no_violation_and_no_growth(tmp_path: Path) -> None:
    done = simulate(tmp_path, *SOAK)
    assert done.returncode == 0, done.stderr
    report = report_in(tmp_path)
    assert report["violations"] == [] and report["deaths"] and report["bytes_verified"], done.stderr
    calls = {latency["call"] for latency in report["results"]["latencies"] if latency["most"]}
    assert calls >= {"match", "reserve", "gather", "echo"}, done.stderr
    assert report["results"]["timeline"]["RssAnon, daemon, MiB"] and list(tmp_path.glob("soak-*.md"))


def test_a_daemon_that_leaks_is_found(tmp_path: Path) -> None:
    done = simulate(tmp_path, *SOAK, broken=LEAK)
    assert done.returncode == 1, done.stderr
    report = report_in(tmp_path)
    assert {"descriptors, daemon", "RssAnon, daemon"} & grown(report), done.stderr
    assert {violation["kind"] for violation in report["violations"]} == {Kind.GREW}, done.stderr
