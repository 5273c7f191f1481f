"""Splits messages into work: packed arrays become pages, and a few pages at a time become tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from pagetier.shm.page_rows import PAGE_KEYS, PAGES_TO_READ, PageToRead, PageToWrite
from pagetier.shm.protocol import Space
from pagetier.tiers.base import Incoming, Outgoing
from pagetier.tiers.worker.arena import WorkerArena
from pagetier.tiers.worker_protocol import Read, Write

_TASK_BYTES: Final = 4 << 20
_TASK_PAGES: Final = 64
_SHARED_BYTES: Final = 64 << 10  # less is not worth another thread and another report


class ReadTask(msgspec.Struct, frozen=True):
    """Some pages of a Read, from page `first` on, for one thread."""

    number: int
    first: int
    pages: tuple[PageToRead, ...]
    spaces: dict[int, Space]

    def incoming(self, page: PageToRead, memory: WorkerArena) -> Incoming:
        """Returns one page with the frames that were granted for it."""
        space = self.spaces[page.space].digest if self.spaces else b""
        return Incoming(page.key, page.size, memory.frames(page.entry), space)


def read_tasks(command: Read, tasks: int = 1) -> Iterator[ReadTask]:
    """Splits a Read so that several threads share it and its first pages are ready soon.

    Args:
        command: The Read.
        tasks: About how many tasks there are at least, unless its pages are small.

    Yields:
        Its tasks, in order.
    """
    pages = tuple(PAGES_TO_READ.read(command.pages))
    most = min(_TASK_BYTES, max(_SHARED_BYTES, sum(page.size for page in pages) // tasks))
    first = 0
    while first < len(pages):
        last, nbytes = first + 1, pages[first].size
        while last < len(pages) and last - first < _TASK_PAGES and nbytes + pages[last].size <= most:
            nbytes += pages[last].size
            last += 1
        yield ReadTask(command.number, first, pages[first:last], command.spaces)
        first = last


def drops_of(command: Write) -> list[bytes]:
    """Returns the keys of the pages to drop."""
    return PAGE_KEYS.split(command.drops)


def outgoing(command: Write, pages: Sequence[PageToWrite], memory: WorkerArena) -> list[Outgoing]:
    """Returns pages of a write, in place. The caller has pinned them."""
    return [
        Outgoing(page.key, command.spaces[page.space], page.size, page.stamp, memory.frames(page.entry), page.history)
        for page in pages
    ]
