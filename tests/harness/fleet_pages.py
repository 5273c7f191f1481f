"""Fleets for tests, over any store, and access to the objects behind them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pagetier.tiers.base import Incoming, Outgoing, PageName, ReadOutcome, ReadResult
from pagetier.tiers.fleet.object_fleet import ObjectFleet
from pagetier.tiers.fleet.object_store import ObjectStore
from pagetier.tiers.fleet.objects import object_name
from pagetier.tiers.fleet.open_fleet import open_fleet
from pagetier.tiers.worker_protocol import FleetOptions
from store_pages import FRAME, SPACE, aligned

BUFFERS = 160 << 20


def whole_object(opened: OpenedFleet, name: str, length: int) -> bytes:
    """Returns the bytes of an object that has this length."""
    memory = opened.fleet._buffers.memory[:length]
    got = opened.store.get(name, memory)
    assert (len(got) if isinstance(got, memoryview) else got) == length
    return bytes(got if isinstance(got, memoryview) else memory)


class OpenedFleet:
    """A fleet and its store. The store's own calls change objects as damage or another program would."""

    def __init__(self, options: FleetOptions) -> None:
        self.options = options
        self.fleet: ObjectFleet = open_fleet(options)
        self.store: ObjectStore = self.fleet._objects.store

    def name(self, page: Outgoing) -> str:
        return object_name(self.options.prefix, PageName(page.space.digest, page.key))

    def length(self, page: Outgoing) -> int:
        """Returns the length of a page's object."""
        return self.store.sizes([self.name(page)])[0]

    def object(self, page: Outgoing) -> bytes:
        """Returns the bytes of a page's object."""
        return whole_object(self, self.name(page), self.length(page))

    def replace(self, page: Outgoing, data: bytes) -> None:
        """Replaces the bytes of a page's object."""
        memory = self.fleet._buffers.memory[: len(data)]
        memory[:] = data
        self.store.remove(self.name(page))
        assert self.store.put(self.name(page), memory)

    def is_there(self, page: Outgoing) -> bool:
        return self.store.exists([self.name(page)]) == [True]

    def store_all(self, *pages: Outgoing) -> None:
        written = self.fleet.write([], pages)
        assert all(written.stored), written.reasons

    def outcome(self, page: Outgoing) -> ReadOutcome:
        """Returns the outcome of a read, whose bytes are those of the page if it is EXACT."""
        result, content = read_from(self.fleet, page)
        if result.outcome is ReadOutcome.EXACT:
            assert content == b"".join(page.frames)[: page.size], "wrong content was reported as exact"
        return result.outcome


def read_from(fleet: ObjectFleet, page: Outgoing) -> tuple[ReadResult, bytes]:
    """Reads a page into frames of its own."""
    whole = aligned(-(-page.size // FRAME) * FRAME)
    frames = [whole[at : at + FRAME] for at in range(0, len(whole), FRAME)]
    result = fleet.read(Incoming(page.key, page.size, frames, page.space.digest))
    return result, bytes(whole[: page.size])


@contextmanager
def opened_fleet(options: FleetOptions) -> Iterator[OpenedFleet]:
    """Opens a fleet for the time of a block. Asserts that no bounce buffer is lent at the end."""
    opened = OpenedFleet(options)
    try:
        yield opened
        assert opened.fleet.state().lent_bytes == 0
    finally:
        opened.fleet.close()


def with_key(options: FleetOptions, folder: Path, key: bytes = b"k" * 32) -> FleetOptions:
    """Returns options with a fleet key."""
    path = folder / f"{key[:4].hex()}.key"
    path.write_bytes(key)
    path.chmod(0o400)
    return msgspec.structs.replace(options, key_file=str(path))


def names_of(pages: list[Outgoing]) -> list[PageName]:
    return [PageName(SPACE.digest, page.key) for page in pages]
