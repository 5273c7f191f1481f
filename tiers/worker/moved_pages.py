"""Moves the pages of one message between the arena and a tier, and reports what became of each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Final, TypeAlias

import msgspec

from pagetier.shm.failpoints import point
from pagetier.shm.page_rows import PAGE_KEYS, PAGES_TO_READ, PAGES_TO_WRITE, PageToRead, PageToWrite
from pagetier.shm.protocol import Space
from pagetier.tiers.base import NO_ROOM, SKIPPED, TOO_LARGE, Incoming, Outgoing, ReadOutcome, ReadResult, Written
from pagetier.tiers.worker.arena import WorkerArena
from pagetier.tiers.worker_protocol import HasRead, Read, Stored, Write, Wrote

Writer: TypeAlias = Callable[[Sequence[bytes], Sequence[Outgoing]], Written]
Reader: TypeAlias = Callable[[Incoming], ReadResult]
_WHY_NOT: Final = {NO_ROOM: Stored.NO_ROOM, TOO_LARGE: Stored.NO_ROOM, SKIPPED: Stored.SKIPPED}
_TASK_BYTES: Final = 4 << 20
_TASK_PAGES: Final = 64
_SHARED_BYTES: Final = 64 << 10  # less is not worth another thread and another report


def write_pages(write: Writer, memory: WorkerArena, command: Write) -> Wrote:
    """Writes the pages that are still in memory, pinned. Raises TierError if the tier cannot continue."""
    # The pins keep the frames from being evicted and reused while the tier reads them. A page whose serial has changed
    # since the daemon's request is another one by now: it cannot be pinned, and is reported as gone.
    pages = list(PAGES_TO_WRITE.read(command.pages))
    with memory.pinned(pages) as there:
        point("worker.pinned")
        written = write(PAGE_KEYS.split(command.drops), _outgoing(command, compress(pages, there), memory))
        point("worker.written")
    # The report follows the end of the write: from then on the daemon may evict the page from memory.
    point("worker.unpinned")
    results = (_stored(written, number) for number in range(len(written.stored)))
    stored = bytes(next(results) if here else Stored.GONE for here in there)
    slots = iter(written.slots)
    taken = array("I", [next(slots) if here else 0 for here in there]).tobytes() if written.slots else b""
    reason = next((why for why in written.reasons if why and why not in _WHY_NOT), "") or written.undropped
    return Wrote(command.number, stored, reason, written.disk_bytes, taken)


def _outgoing(command: Write, pages: Iterable[PageToWrite], memory: WorkerArena) -> list[Outgoing]:
    """Returns pages of a write, in place. The caller has pinned them."""
    return [
        Outgoing(page.key, command.spaces[page.space], page.size, page.stamp, memory.frames(page.entry), page.history)
        for page in pages
    ]


def _stored(written: Written, number: int) -> Stored:
    if written.stored[number]:
        return Stored.PRESENT if number in written.present else Stored.DONE
    return _WHY_NOT.get(written.reasons[number], Stored.FAILED)


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


def read_pages(read_one: Reader, memory: WorkerArena, task: ReadTask) -> HasRead:
    """Reads the pages of a task; whatever happens to a page, its part is published or given up."""
    read, damaged, reason = bytearray(len(task.pages)), b"", ""
    for at, page in enumerate(task.pages):
        # The daemon has granted these frames to the worker. Nothing else uses them until the page is published, so a
        # read that fails, or that returns other bytes, does no harm.
        result = read_one(task.incoming(page, memory))
        # Only a page whose checksum was verified in its frames is published. Clients find it from then on, before the
        # daemon hears of it: the report only ends the request.
        if result.outcome is ReadOutcome.EXACT:
            read[at] = memory.publish(page.entry, page.serial)
            continue
        # The frames of any other page go back to the daemon. Its key is reported as damaged if the tier does not have
        # the page any more; after FAILED the page may still be there, and a later read may succeed.
        reason = reason or result.reason
        if result.outcome is not ReadOutcome.FAILED:
            damaged += page.key
        memory.abandon(page.entry, page.serial)
    point("worker.has_read")
    return HasRead(task.number, task.first, bytes(read), damaged, reason)
