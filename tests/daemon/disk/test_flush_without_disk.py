"""Tests flushes while the disk is down or hangs: the pages are not found when it is back, and the response says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from disk_away import disk_away
from disk_daemon import SPACE, WAIT_S, DiskDaemon, Engine, in_both
from pagetier.shm.exit_codes import Exit
from pagetier.shm.protocol import FetchOutcome, Flush, Flushed
from running_daemon import eventually, namespace

FRAMES = 16


@pytest.fixture
def daemon() -> Iterator[DiskDaemon]:
    with DiskDaemon(FRAMES) as running:
        yield running


@pytest.mark.parametrize("which", [["--all"], ["--namespace", SPACE.name]])
def test_pages_flushed_while_the_disk_is_down_do_not_come_back(
    daemon: DiskDaemon, engine: Engine, which: list[str]
) -> None:
    numbers = in_both(daemon, engine)
    with disk_away(daemon):
        result = daemon.pagetier("flush", *which, "--yes")
        assert result.exit_code == Exit.WRONG
        assert "8 pages dropped" in result.output
        assert "Error: the disk tier is not open" in result.output
        engine.store([7])
    assert engine.places(numbers) == {"nowhere": 7, "memory": 1}
    assert engine.fetch(numbers[:7]) == [FetchOutcome.ABSENT] * 7
    daemon.stop()
    daemon.open()
    assert daemon.snapshot().tiers.disk.pages == 1


def test_a_flush_of_memory_while_the_disk_is_down_keeps_the_pages_on_disk(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = in_both(daemon, engine)
    with disk_away(daemon):
        assert daemon.pagetier("flush", "--all", "--tier", "memory", "--yes").exit_code == 0
    assert engine.places(numbers) == {"disk": 8}


def test_a_flush_of_another_namespace_while_the_disk_is_down_keeps_the_pages(
    daemon: DiskDaemon, engine: Engine
) -> None:
    numbers = in_both(daemon, engine)
    with daemon.client() as client, disk_away(daemon):
        client.store(namespace().keys(range(16)), [bytes(1)])
        assert "1 page dropped" in daemon.pagetier("flush", "--namespace", namespace().name, "--yes").output
    assert engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * 8


def test_flushed_pages_stay_flushed_when_the_worker_dies_first(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = in_both(daemon, engine)
    restarts = daemon.report().restarts
    stopped = daemon.kill_worker(signal.SIGSTOP)
    with daemon._observing() as (first, _), daemon._observing() as (second, _):
        for link in (first, second):  # for the second request the index has no page left
            link.send(Flush(1, None), WAIT_S)
            assert eventually(lambda: daemon.header().pages == 0)
        os.kill(stopped, signal.SIGKILL)
        for link, pages in ((first, 8), (second, 0)):
            (answer,) = link.read(WAIT_S)
            assert isinstance(answer, Flushed)
            assert (answer.dropped, answer.kept) == (pages, 0)
            assert "the disk tier is not open" in answer.trouble
    daemon.wait_open(restarts + 1)
    assert engine.places(numbers) == {"nowhere": 8}
    assert daemon.snapshot().tiers.disk.pages == 0
