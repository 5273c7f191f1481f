"""Tests that stores wait for a busy disk in order, and never longer than `disk.store_timeout`."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from index_with_disk import FRAME, Place
from pagetier.daemon.disk.backpressure import BackPressure
from pagetier.shm._core import WriteRule

PATIENCE_S = 0.05


@pytest.fixture
def place() -> Iterator[Place]:
    """Yields a place in which six of eight frames have pages that are not on disk yet."""
    made = Place()
    made.owner.disk_open(64, WriteRule.EVICTED)
    for number in range(6):
        made.store(f"page{number}")
    yield made


def sizes(pages: int) -> bytes:
    return struct.pack(f"<{pages}Q", *[FRAME] * pages)


class Writer:
    """The writer of a disk that is busy or idle, as the test decides."""

    writing = True


def backlog(place: Place, patience: float = PATIENCE_S, writer: Writer | None = None) -> BackPressure:
    return BackPressure(place.owner, writer or Writer(), patience, asyncio.get_running_loop())


def note(gone: list[str], name: str) -> Callable[[], None]:
    return lambda: gone.append(name)


def test_a_store_into_free_frames_does_not_wait(place: Place) -> None:
    async def run() -> None:
        gone: list[str] = []
        backlog(place).serve_when_disk_has_room(sizes(2), note(gone, "a"))
        assert gone == ["a"]

    asyncio.run(run())


def test_a_store_that_would_evict_unwritten_pages_waits_for_the_disk(place: Place) -> None:
    async def run() -> None:
        gone: list[str] = []
        waiting = backlog(place, patience=10)
        waiting.serve_when_disk_has_room(sizes(4), note(gone, "a"))
        waiting.serve_when_disk_has_room(sizes(1), note(gone, "b"))  # not before the stores that arrived earlier
        waiting.release_ready()
        assert gone == []
        place.write()
        waiting.release_ready()
        assert gone == ["a", "b"]

    asyncio.run(run())


def test_no_store_waits_longer_than_its_timeout(place: Place) -> None:
    async def run() -> None:
        gone: list[str] = []
        waiting = backlog(place)
        began = time.monotonic()
        for name in "abc":
            waiting.serve_when_disk_has_room(sizes(4), note(gone, name))
        while len(gone) < 3 and time.monotonic() < began + 5:
            await asyncio.sleep(0.005)
        assert gone == ["a", "b", "c"]
        assert time.monotonic() - began >= PATIENCE_S

    asyncio.run(run())


def test_no_store_waits_for_an_idle_disk(place: Place) -> None:
    async def run() -> None:
        gone: list[str] = []
        writer = Writer()
        waiting = backlog(place, patience=10, writer=writer)
        waiting.serve_when_disk_has_room(sizes(4), note(gone, "a"))
        writer.writing = False
        waiting.serve_when_disk_has_room(sizes(4), note(gone, "b"))
        waiting.release_ready()
        assert gone == ["b", "a"]

    asyncio.run(run())


def test_without_a_timeout_no_store_waits(place: Place) -> None:
    async def run() -> None:
        gone: list[str] = []
        backlog(place, patience=0).serve_when_disk_has_room(sizes(7), note(gone, "a"))
        assert gone == ["a"]

    asyncio.run(run())
