"""Tests that stores wait for a busy disk in order, and never longer than `disk.store_timeout`."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator

import pytest

from index_with_disk import FRAME, Place
from pagetier.daemon.common import loop_clock
from pagetier.daemon.disk.backpressure import BackPressure
from pagetier.shm._core import WriteRule

pytestmark = pytest.mark.usefixtures("virtual_time")
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


class Stores:
    """Stores that are served when the disk has room; `served` has their names in this order."""

    def __init__(self, waiting: BackPressure) -> None:
        self.waiting = waiting
        self.served: list[str] = []

    def ask(self, name: str, pages: int) -> None:
        self.waiting.serve_when_disk_has_room(pages, lambda: self.served.append(name))


@pytest.mark.parametrize(("pages", "patience"), [(2, PATIENCE_S), (7, 0)], ids=["free frames", "no timeout"])
async def test_a_store_that_need_not_wait_is_served_at_once(place: Place, pages: int, patience: float) -> None:
    stores = Stores(backlog(place, patience))
    stores.ask("a", pages)
    assert stores.served == ["a"]


async def test_a_store_that_would_evict_unwritten_pages_waits_for_the_disk(place: Place) -> None:
    stores = Stores(backlog(place, patience=10))
    stores.ask("a", 4)
    stores.ask("b", 1)  # not before the stores that arrived earlier
    stores.waiting.serve_ready()
    assert stores.served == []
    place.write()
    stores.waiting.serve_ready()
    assert stores.served == ["a", "b"]


async def test_a_store_waits_for_its_own_timeout_and_no_longer(place: Place) -> None:
    stores = Stores(backlog(place))
    for name in "abc":
        stores.ask(name, 4)
        await loop_clock.pause(PATIENCE_S / 4)
    await loop_clock.pause(0.24 * PATIENCE_S)
    for served in range(3):
        assert stores.served == ["a", "b", "c"][:served], "each waits for its whole timeout"
        await loop_clock.pause(PATIENCE_S / 4)
    assert stores.served == ["a", "b", "c"]


async def test_no_store_waits_for_an_idle_disk(place: Place) -> None:
    writer = Writer()
    stores = Stores(backlog(place, patience=10, writer=writer))
    stores.ask("a", 4)
    writer.writing = False
    stores.ask("b", 4)
    stores.waiting.serve_ready()
    assert stores.served == ["b", "a"]
