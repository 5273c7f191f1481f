"""Tests that engines continue while the disk worker is killed, stopped or useless, and that it is soon back."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from bare_engine import Engine
from disk_daemon import DiskDaemon, evicted
from eventually import eventually
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm._core import ReserveOutcome
from pagetier.shm.protocol import FetchOutcome

FRAMES = 32


@pytest.fixture(scope="module")
def daemon() -> Iterator[DiskDaemon]:
    with DiskDaemon(FRAMES) as running:
        yield running


def test_a_killed_worker_is_soon_back_and_memory_never_misses(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = evicted(daemon, engine, 0)
    warm = range(20_000, 20_008)
    engine.store(warm)
    restarts = daemon.report().restarts
    pid = daemon.kill_worker()
    assert eventually(lambda: engine.available_pages(numbers)[1] == 0 or daemon.report().restarts > restarts)

    def is_back() -> bool:
        assert engine.places(warm) == {"memory": 8}
        return daemon.report().standing is Standing.OPEN and daemon.report().restarts > restarts

    assert eventually(is_back), daemon.reported()
    assert eventually(lambda: engine.available_pages(numbers) == (0, 8))
    assert engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * 8
    assert daemon.worker() != pid
    assert daemon.report().restarts == restarts + 1
    assert len(daemon.lines("killed by signal 9")) == daemon.log.read_text().count("killed by signal 9") >= 1


def test_a_fetch_ends_when_the_worker_dies(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = evicted(daemon, engine, 100)
    restarts = daemon.report().restarts
    daemon.kill_worker(signal.SIGSTOP)
    engine.ask_fetch(numbers)
    engine.store([30_000])  # by now the daemon has received the fetch
    daemon.kill_worker()
    answer = engine.answer()
    assert list(answer.outcomes) == [FetchOutcome.ABSENT] * 8
    assert "the disk worker ended" in answer.reason
    assert engine.fetch(numbers) in ([FetchOutcome.ABSENT] * 8, [FetchOutcome.IN_MEMORY] * 8)
    daemon.wait_open(restarts + 1)
    assert engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * 8


def test_a_stopped_worker_delays_no_engine(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = evicted(daemon, engine, 200)
    daemon.kill_worker(signal.SIGSTOP)
    engine.ask_fetch(numbers, 0.3)
    answer = engine.answer()
    assert list(answer.outcomes) == [FetchOutcome.PENDING] * 8
    assert "the timeout passed" in answer.reason
    for first in range(40_000, 40_000 + 4 * FRAMES, 4):  # several times the arena: no store is rejected
        assert ReserveOutcome.REFUSED_FULL not in engine.store(range(first, first + 4))
        assert engine.places(range(first, first + 4)) == {"memory": 4}
    assert daemon.findings() == []
    daemon.kill_worker(signal.SIGCONT)
    assert eventually(lambda: engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * 8)
