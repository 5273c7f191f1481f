"""Tests jumps of the realtime clock of daemon, disk worker and engines: all timeouts use the monotonic clock."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from disk_daemon import DiskDaemon
from eventually import eventually
from host_events.clock import Clock
from host_events.engine import PAGE
from host_events.engine_group import EngineGroup
from running_daemon import RunningDaemon, namespace

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler is installed")
DAY_S = 86_400.0
YEAR_S = 366 * DAY_S
JUMPS = (3600.0, -3600.0, 10 * YEAR_S, -20 * YEAR_S, 0.5, -56 * YEAR_S, 0.0)
EXPIRY_S = 1800  # less than the first jump, and more than the test takes


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def daemon(clock: Clock) -> Iterator[DiskDaemon]:
    expiry = f"--constant=store.reservation_timeout={EXPIRY_S}"
    with DiskDaemon(64, "64MiB", "--set", "disk.write=through", expiry, before=clock.before) as daemon:
        yield daemon


def notices(daemon: RunningDaemon, jump: float) -> bool:
    """Returns whether the daemon's own clock has jumped, by the timestamp of a log line."""
    year = (datetime.now(UTC) + timedelta(seconds=jump)).year
    lines = len(daemon.log.read_text().splitlines())
    daemon.signal(signal.SIGHUP)
    return eventually(
        lambda: any(line.startswith(f"ts={year}") for line in daemon.log.read_text().splitlines()[lines:])
    )


def test_a_clock_jump_delays_expires_and_loses_nothing(daemon: DiskDaemon, clock: Clock) -> None:
    worker = daemon.worker()
    with EngineGroup(daemon, clock.variables) as company, daemon.client() as client:
        reservation = client.reserve(namespace(salt="slow").keys(range(16)), PAGE)
        company.start_engine(1)
        company.start_engine(2)
        for jump in JUMPS:
            clock.jump(jump)
            assert notices(daemon, jump), daemon.log.read_text()
            company.work(rounds=15)
            assert daemon.save().synced, daemon.log.read_text()
        reservation.write(0, bytes(PAGE))
        assert reservation.publish().stored == 1, "a reservation expired early"
        served = company.leave()
    assert not any("in time" in one.reason for one in served), served
    assert daemon.worker() == worker, daemon.log.read_text()
