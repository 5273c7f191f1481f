"""Writes pages to the fleet soon after they were stored, from a bounded queue. No store waits for it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from pagetier.daemon.common import loop_clock
from pagetier.daemon.fleet.granted_pages import Page, granted_pages
from pagetier.daemon.workers.worker_process import CommandSender, no_worker
from pagetier.shm._core import HISTORY_BYTES
from pagetier.shm.page_rows import PAGES_TO_WRITE, PageToWrite
from pagetier.shm.protocol import ProtocolError, Reserve, Reserved
from pagetier.tiers.base import TOO_LARGE
from pagetier.tiers.worker_protocol import Stored, Write, Wrote

_SETTLING_S: Final = 0.5  # after its reservation, a page is usually complete
_RETRIES_S: Final = (2.0, 8.0)  # after the write of a page that was not complete yet
_FIRST_PAUSE_S: Final = 1.0  # after a write that failed
_LONGEST_PAUSE_S: Final = 30.0
_BATCH_BYTES: Final = 32 << 20
_BATCH_PAGES: Final = 1024  # S3 is asked about each of them, within the time of one call
_MOST_WRITES: Final = 2
_SMALLEST_PART: Final = 8  # of the arena: pages that are being written cannot be evicted
_LEAST_QUEUE: Final = 256 << 20
_QUEUE_S: Final = 2.0  # of work at the measured rate
_WHOLE: Final = 1 << 62


class _GrantedPages(msgspec.Struct, frozen=True, eq=False):
    """Pages to write from `due` on, in the messages of their reservation."""

    due: float
    nbytes: int
    request: Reserve
    answer: Reserved

    def pages(self) -> Iterator[Page]:
        """Yields the pages."""
        return granted_pages(self.request, self.answer)


class WriteCounts(msgspec.Struct):
    """Pages by what became of their writes, and the bytes that were written or dropped.

    Attributes:
        written: Pages that are in the fleet now.
        stored_bytes: The bytes that the store got for them: fewer than those of the pages if they were compressed.
        present: Pages that the fleet had already.
        gone: Pages that left memory, or were never complete, before they could be written.
        dropped: Pages that did not fit into the queue.
        failed: Pages that the fleet did not take until they left memory, or that are too large for it.
        waiting: Pages that the fleet did not take, and that are tried again.
    """

    written: int = 0
    written_bytes: int = 0
    stored_bytes: int = 0
    present: int = 0
    gone: int = 0
    dropped: int = 0
    dropped_bytes: int = 0
    failed: int = 0
    waiting: int = 0


class WriteThrough:
    """The queue of pages to write to the fleet, and the writes in progress. On the loop's thread only.

    Attributes:
        enabled: Whether pages are noted: `remote.write` is "through". They wait while there is no worker.
        rate: The most bytes per second, 0 for any.
        queued_bytes: The bytes in the queue.
        given_up: Why the last page that was given up had failed, "" if none was.
    """

    def __init__(self, arena_bytes: int) -> None:
        self._send: CommandSender = no_worker
        self._numbers = itertools.count(1)
        self._granted: deque[_GrantedPages] = deque()
        self._ready: deque[Page] = deque()
        self._retries: deque[tuple[float, Page]] = deque()
        self._writing: dict[int, tuple[list[Page], float]] = {}
        self._most_bytes = min(_BATCH_BYTES, max(1, arena_bytes // _SMALLEST_PART // _MOST_WRITES))
        self._speed = 0.0
        self._allowed, self._allowed_at = 0.0, loop_clock.now()
        self.enabled = False
        self.rate = 0
        self.queued_bytes = 0
        self._why = ""
        self.given_up = ""
        self.counts = WriteCounts()

    def begin(self, send: CommandSender) -> None:
        """Sends the writes to this worker from now on."""
        self._send = send

    @property
    def trouble(self) -> str:
        """Why pages wait to be written again, "" if none does."""
        return self._why if self.counts.waiting else ""

    def lost(self) -> None:
        """Queues the pages of writes in progress again: the worker is gone."""
        self._send = no_worker
        lost, self._writing = self._writing, {}
        for pages, _ in lost.values():
            for page in pages:
                self._retry(page, "the worker of the fleet ended while it wrote", loop_clock.now())

    def drop_all(self) -> None:
        """Drops the queue: nothing is to be written any more."""
        for granted in self._granted:
            self._drop(sum(1 for page in granted.pages()), granted.nbytes)
        self._drop(len(self._ready), sum(page.size for page in self._ready))
        self._drop(len(self._retries), sum(page.size for _, page in self._retries))
        self._granted.clear()
        self._ready.clear()
        self._retries.clear()
        self.queued_bytes = 0
        self.counts.waiting = sum(bool(page.why) for pages, _ in self._writing.values() for page in pages)

    def note(self, request: Reserve, answer: Reserved, nbytes: int) -> None:
        """Queues what a reservation granted to the writer of part 0, as far as it fits: ranks do not count twice.

        Args:
            request: The request.
            answer: The answer to it.
            nbytes: The bytes of the pages that it granted.
        """
        if request.part:
            return
        room = max(_LEAST_QUEUE, int(_QUEUE_S * self._speed)) - self.queued_bytes
        taken = min(nbytes, max(0, room))
        self.queued_bytes += taken
        self._granted.append(_GrantedPages(loop_clock.now() + _SETTLING_S, taken, request, answer))

    @property
    def is_due(self) -> bool:
        """Whether there are pages to write now."""
        return bool(self._ready)

    def send_due(self, most: int = _MOST_WRITES) -> None:
        """Sends the writes that are due, up to `most` in progress. take_due() comes first."""
        while self._ready and len(self._writing) < most:
            if not (pages := self._take_batch()):
                return
            number = next(self._numbers)
            self._writing[number] = (pages, loop_clock.now())
            self._send(_command(number, pages))

    def oldest(self, now: float) -> tuple[int, float]:
        """Returns the number of pages of the oldest write in progress, and for how many seconds it has been."""
        pages, began = next(iter(self._writing.values()), ([], now))
        return len(pages), now - began

    def wrote(self, report: Wrote) -> str:
        """Handles the end of a write.

        Returns:
            Why the fleet failed, "" if it did not.

        Raises:
            ProtocolError: There is no such write.
        """
        pages, began = self._writing.pop(report.number, ([], 0.0))
        if len(report.stored) != len(pages):
            raise ProtocolError("a report on pages without a write command")
        now = loop_clock.now()
        done, failed = (_bytes_of(pages, report.stored, result) for result in (Stored.DONE, Stored.FAILED))
        self.counts.stored_bytes += report.disk_bytes
        if self.rate:  # what the fleet had, what was not tried and what compression saved was charged, too
            charged = sum(page.size for page in pages)
            self._allowed += max(0, charged - failed - report.disk_bytes)
        if done:
            speed = done / max(1e-6, now - began)
            self._speed = speed if not self._speed else 0.8 * self._speed + 0.2 * speed
        skipped = list[Page]()
        for page, stored in zip(pages, report.stored, strict=True):
            match Stored(stored):
                case Stored.FAILED:
                    self._retry(page, report.reason, now)
                case Stored.SKIPPED:
                    skipped.append(page)
                case ended:
                    self._count(page, ended, now)
        self._put_back(skipped)
        return report.reason if Stored.FAILED in report.stored else ""

    def _retry(self, page: Page, why: str, now: float) -> None:
        """Lets a page that was not taken wait for another try, while it is in memory."""
        self.counts.waiting += not page.why
        self._why = why
        pause = min(_FIRST_PAUSE_S * 2.0**page.failures, _LONGEST_PAUSE_S)
        again = msgspec.structs.replace(page, failures=page.failures + 1, why=why or "no reason is known")
        self._retries.append((now + pause, again))
        self.queued_bytes += page.size

    def _put_back(self, pages: list[Page]) -> None:
        """Puts pages before all others that are ready, in their order: pages after a missing one are not found."""
        self._ready.extendleft(reversed(pages))
        self.queued_bytes += sum(page.size for page in pages)

    def _count(self, page: Page, stored: Stored, now: float) -> None:
        counts = self.counts
        counts.waiting -= bool(page.why)
        match stored:
            case Stored.DONE:
                counts.written += 1
                counts.written_bytes += page.size
            case Stored.PRESENT if page.why:  # an earlier write was late
                counts.written += 1
                counts.written_bytes += page.size
                counts.stored_bytes += page.size
            case Stored.PRESENT:
                counts.present += 1
            case Stored.NO_ROOM:
                counts.failed += 1
                self.given_up = TOO_LARGE
            case Stored.GONE if page.why:
                counts.failed += 1
                self.given_up = page.why
            case Stored.GONE if page.tries < len(_RETRIES_S):
                again = msgspec.structs.replace(page, tries=page.tries + 1)
                self._retries.append((now + _RETRIES_S[page.tries], again))
                self.queued_bytes += page.size
            case _:
                counts.gone += 1

    def take_due(self) -> None:
        """Makes pages ready whose time has come, and drops what does not fit. Called a few times a second, always."""
        now = loop_clock.now()
        while self._granted and self._granted[0].due <= now:
            granted = self._granted.popleft()
            self.queued_bytes -= granted.nbytes
            left = granted.nbytes
            for page in granted.pages():
                left -= page.size
                if left < 0:
                    self._drop(1, page.size)
                else:
                    self._ready.append(page)
                    self.queued_bytes += page.size
        due = [page for at, page in self._retries if at <= now]
        if due:
            self._retries = deque((at, page) for at, page in self._retries if at > now)
            self._ready.extendleft(reversed(due))

    def _take_batch(self) -> list[Page]:
        """Takes the pages of the next write off the queue, head first, and charges the rate with their bytes.

        Returns:
            The pages; none if the rate does not allow it yet.
        """
        now, pages, nbytes = loop_clock.now(), list[Page](), 0
        if self.rate:
            self._allowed = min(float(self.rate), self._allowed + self.rate * (now - self._allowed_at))
            self._allowed_at = now
            if self._allowed <= 0:
                return []
        keys: set[bytes] = set()
        while self._ready and len(pages) < _BATCH_PAGES:
            if pages and nbytes + self._ready[0].size > self._most_bytes:
                break
            page = self._ready.popleft()
            self.queued_bytes -= page.size
            if page.key in keys:
                self.counts.waiting -= bool(page.why)
                continue
            keys.add(page.key)
            pages.append(page)
            nbytes += page.size
        self._allowed -= nbytes if self.rate else 0
        return pages

    def _drop(self, pages: int, nbytes: int) -> None:
        self.counts.dropped += pages
        self.counts.dropped_bytes += nbytes


def _bytes_of(pages: list[Page], stored: bytes, result: Stored) -> int:
    """Returns the bytes of the pages with this result."""
    return sum(page.size for page, ended in zip(pages, stored, strict=True) if ended == result)


def _command(number: int, pages: list[Page]) -> Write:
    spaces = {page.space: at for at, page in enumerate({page.space: page for page in pages}.values())}
    rows = (
        PageToWrite(page.key, bytes(HISTORY_BYTES), page.size, page.serial, 0, page.entry, spaces[page.space], 0)
        for page in pages
    )
    return Write(number, b"", PAGES_TO_WRITE.pack(rows), {at: space for space, at in spaces.items()})
