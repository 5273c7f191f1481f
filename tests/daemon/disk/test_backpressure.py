"""Stores wait for a disk that is behind, in order, and never longer than they were told to."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from index_with_disk import EVICTED, FRAME, Place
from pagetier.daemon.disk.backpressure import BackPressure

PATIENCE_S = 0.05


@pytest.fixture
def place() -> Iterator[Place]:
    """Six of eight frames hold pages that the disk is still to have."""
    made = Place()
    made.owner.disk_open(64, EVICTED)
    for number in range(6):
        made.store(f"page{number}")
    yield made


def sizes(pages: int) -> bytes:
    return struct.pack(f"<{pages}Q", *[FRAME] * pages)


def backlog(place: Place, patience: float = PATIENCE_S) -> BackPressure:
    made = BackPressure(place.owner, patience, asyncio.get_running_loop())
    made.writing = True
    return made


def note(gone: list[str], name: str) -> Callable[[], None]:
    return lambda: gone.append(name)


def test_who_takes_free_frames_does_not_wait(place: Place) -> None:
    async def run() -> None:
        gone: list[str] = []
        backlog(place).admit(sizes(2), note(gone, "a"))
        assert gone == ["a"]

    asyncio.run(run())


def test_who_would_drive_out_unwritten_pages_waits_for_them_to_be_written(place: Place) -> None:
    async def run() -> None:
        gone: list[str] = []
        waiting = backlog(place, patience=10)
        waiting.admit(sizes(4), note(gone, "a"))
        waiting.admit(sizes(1), note(gone, "b"))  # not before those who came first
        waiting.look()
        assert gone == []
        place.write()
        waiting.look()
        assert gone == ["a", "b"]

    asyncio.run(run())


def test_nobody_waits_longer_than_his_patience(place: Place) -> None:
    async def run() -> None:
        gone: list[str] = []
        waiting = backlog(place)
        began = time.monotonic()
        for name in "abc":
            waiting.admit(sizes(4), note(gone, name))
        while len(gone) < 3 and time.monotonic() < began + 5:
            await asyncio.sleep(0.005)
        assert gone == ["a", "b", "c"]
        assert time.monotonic() - began >= PATIENCE_S

    asyncio.run(run())


def test_nobody_waits_for_a_disk_that_is_not_at_work(place: Place) -> None:
    async def run() -> None:
        gone: list[str] = []
        waiting = backlog(place, patience=10)
        waiting.admit(sizes(4), note(gone, "a"))
        waiting.writing = False
        waiting.admit(sizes(4), note(gone, "b"))
        waiting.look()
        assert gone == ["b", "a"]

    asyncio.run(run())


def test_without_patience_nobody_waits(place: Place) -> None:
    async def run() -> None:
        gone: list[str] = []
        backlog(place, patience=0).admit(sizes(7), note(gone, "a"))
        assert gone == ["a"]

    asyncio.run(run())
