"""Splits messages into work: packed arrays become pages, and a few pages at a time become tasks."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import msgspec

from pagetier.shm._core import KEY_BYTES
from pagetier.shm.page_rows import PageToWrite
from pagetier.shm.protocol import Space
from pagetier.tiers.base import Incoming, Outgoing
from pagetier.tiers.worker.arena import WorkerArena
from pagetier.tiers.worker_protocol import Read, Write

_TASK_BYTES = 4 << 20
_TASK_PAGES = 64


class ReadTask(msgspec.Struct, frozen=True):
    """Some pages of a Read, from page `first` on, for one thread."""

    number: int
    first: int
    entries: array[int]
    serials: array[int]
    keys: bytes
    sizes: array[int]
    spaces: array[int]
    table: tuple[Space, ...]

    def __len__(self) -> int:
        return len(self.entries)

    def incoming(self, page: int, memory: WorkerArena) -> Incoming:
        """Returns one page with the frames that were granted for it."""
        space = self.table[self.spaces[page]].digest if self.spaces else b""
        return Incoming(_key(self.keys, page), self.sizes[page], memory.frames(self.entries[page]), space)


def read_tasks(command: Read) -> Iterator[ReadTask]:
    """Splits a Read so that several threads share it and its first pages are ready soon."""
    entries, serials, sizes = array("I", command.entries), array("Q", command.serials), array("Q", command.sizes)
    spaces = array("I", command.spaces)
    first = 0
    while first < len(entries):
        last, nbytes = first + 1, sizes[first]
        while last < len(entries) and last - first < _TASK_PAGES and nbytes + sizes[last] <= _TASK_BYTES:
            nbytes += sizes[last]
            last += 1
        keys, pages = command.keys[first * KEY_BYTES : last * KEY_BYTES], slice(first, last)
        yield ReadTask(
            command.number,
            first,
            entries[pages],
            serials[pages],
            keys,
            sizes[pages],
            spaces[pages],
            command.table,
        )
        first = last


def drops_of(command: Write) -> list[bytes]:
    """Returns the keys of the pages to drop."""
    return [_key(command.drops, i) for i in range(len(command.drops) // KEY_BYTES)]


def outgoing(command: Write, pages: Sequence[PageToWrite], memory: WorkerArena) -> list[Outgoing]:
    """Returns pages of a write, in place. The caller has pinned them."""
    return [
        Outgoing(page.key, command.spaces[page.space], page.size, page.stamp, memory.frames(page.entry), page.history)
        for page in pages
    ]


def _key(keys: bytes, number: int) -> bytes:
    return keys[number * KEY_BYTES : (number + 1) * KEY_BYTES]
