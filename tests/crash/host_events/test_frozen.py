"""Tests that daemon, disk worker and engines survive a common stop under load, as in a frozen host or container."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from disk_daemon import DiskDaemon
from eventually import pause
from host_events.engine_group import EngineGroup

FROZEN_S = float(os.environ.get("FROZEN", "3"))  # FROZEN=60: the duration of a long live migration
EXPIRY_S = 1.0  # shorter than the stop, so that a wrong use of time would be visible


@pytest.fixture
def daemon() -> Iterator[DiskDaemon]:
    times = (f"--constant=store.reservation_timeout={EXPIRY_S}", "--constant=store.quarantine=0.05")
    with DiskDaemon(64, "64MiB", "--set", "disk.write=through", *times) as daemon:
        yield daemon


@contextmanager
def frozen(pids: list[int], waking: list[int]) -> Iterator[None]:
    """Stops these processes for the duration of the block, then resumes them one by one in the order of `waking`."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in waking:
            os.kill(pid, signal.SIGCONT)
            pause(0.2)


@pytest.mark.wall_clock
@pytest.mark.parametrize("first", ["daemon", "worker", "engines"])
def test_all_processes_continue_after_a_common_stop(daemon: DiskDaemon, first: str) -> None:
    with EngineGroup(daemon) as company:
        for seed in range(3):
            company.start_engine(seed)
        company.work(rounds=10)
        groups = {
            "daemon": [daemon.pid],
            "worker": [daemon.worker()],
            "engines": [member.process.pid for member in company.members],
        }
        everybody = [pid for group in groups.values() for pid in group]
        waking = groups.pop(first) + [pid for group in groups.values() for pid in group]
        with frozen(everybody, waking):
            pause(FROZEN_S)
        company.work(rounds=20)
        served = company.leave()
    assert not any("in time" in one.reason for one in served), served
    log = daemon.log.read_text()
    assert "process_died" not in log and "disk_down" not in log, log
