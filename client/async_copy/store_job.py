"""A store as a copy job: it reserves memory, copies the granted pages in chunks, and publishes each chunk."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from pagetier.client.async_copy.arena_pages import Indices, bytes_of_pages, chunks_of, picked
from pagetier.client.async_copy.granted_pages import GrantedPages
from pagetier.client.async_copy.job import CopyJob, Counts, Piece
from pagetier.client.async_copy.throttle import CopyBacklog
from pagetier.client.futures import PendingReservation
from pagetier.client.reservation import Outcome, Reservation, StoreResult
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.device import Copy, Direction, Event
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.transfer import Transfer

_RETRY_S: Final = 2e-3
_NO_RESPONSE = "the daemon did not answer in time"
_CANCELLED = "the store was cancelled"
_LEFT_OUT = "copies cannot keep up: the last pages were left out"
_UNUSABLE = "the memory of some pages cannot be used"
_SKIPPED = "some pages were marked as skipped"


class StorePlan(msgspec.Struct, frozen=True, eq=False):
    """The pages of a store.

    Attributes:
        transfers: The copies, each of all pages.
        ask: Requests memory for the pages, without waiting for the socket.
    """

    transfers: tuple[Transfer, ...]
    ask: Callable[[], PendingReservation]

    def __len__(self) -> int:
        return len(self.transfers[0].slots)


class Chunk(msgspec.Struct, frozen=True, eq=False):
    """Pages that are copied together, their location and their size."""

    pages: Indices
    frames: Frames
    nbytes: int


class ReservationQueue:
    """Sends the reservations of a stream queue. If the daemon's socket is full, all stores wait 2 ms."""

    def __init__(self) -> None:
        self._next_attempt = -math.inf

    def ask(self, plan: StorePlan, now: float) -> PendingReservation | None:
        """Requests memory for a store. Returns None if the request cannot be sent now."""
        if now < self._next_attempt:
            return None
        pending = plan.ask()
        if pending.unsent:
            self._next_attempt = now + _RETRY_S
            return None
        return pending


class StoringJob(CopyJob):
    """A store of a plan. Each chunk of pages is one piece.

    Attributes:
        result: What became of the pages so far.
        decided: Whether that is final.
    """

    def __init__(
        self,
        plan: StorePlan,
        reservations: ReservationQueue,
        backlog: CopyBacklog,
        settings: CopySettings,
        counts: Counts,
        after: object = None,
    ) -> None:
        super().__init__(after)
        self.result = StoreResult(bytes([Outcome.PENDING]) * len(plan), "the store is in progress")
        self.decided = False
        self._plan, self._reservations, self._backlog = plan, reservations, backlog
        self._settings, self._counts = settings, counts
        self._sizes = bytes_of_pages(plan.transfers, len(plan))
        self._pending: PendingReservation | None = None
        self._give_up_at = math.inf
        self._granted: GrantedPages | None = None
        self._chunks: deque[Chunk] = deque()
        self._in_flight: deque[Chunk] = deque()
        self._reason = ""
        self._failed = False
        self._began_ns = 0

    def reject(self, reason: str) -> None:
        """Ends the store before it started: all pages are rejected."""
        if self._pending is not None:
            self._pending.cancel()
        self._settle(StoreResult(bytes([Outcome.REFUSED]) * len(self._plan), reason))

    def prepare(self, now: float) -> bool:
        """Implements CopyJob.prepare(). The store starts when the daemon has answered, or its time is over."""
        if self._pending is None and not self._cancelled:
            # The time starts with the first attempt to send: the daemon has no part in a delay by the device.
            self._give_up_at = min(self._give_up_at, now + self._settings.reserve_timeout)
            self._pending = self._reservations.ask(self._plan, now)
        if self._cancelled:
            self._counts.cancelled += len(self._plan)
            self.reject(_CANCELLED)
        elif self._pending is not None and self._pending.ready:
            self._take(self._pending.wait(0.0))
        elif now >= self._give_up_at:
            self._give_up_asking()
        return self._granted is not None or self.decided

    def next(self) -> Piece | None:
        """Implements CopyJob.next(). Returns the next chunk."""
        if self._cancelled:
            self._drop_rest(_CANCELLED)
        if not self._chunks:
            self._end_if_completed()
            return None
        self._began_ns = self._began_ns or time.monotonic_ns()
        chunk = self._chunks.popleft()
        self._in_flight.append(chunk)
        return Piece(tuple(self._copies(chunk)), chunk.nbytes)

    def enqueued(self, event: Event) -> None:
        """Implements CopyJob.enqueued(). Only the stream queue waits for the event."""

    def completed(self) -> None:
        """Implements CopyJob.completed().

        Publishes the oldest chunk in flight, unless the store was cancelled or has failed.
        """
        chunk = self._in_flight.popleft()
        self._backlog.release(chunk.nbytes)
        with self._changed:  # so that a cancel() comes either before or after the publishing
            if self._cancelled or self._failed:
                self._give_up(chunk, _CANCELLED)
            else:
                self._publish(chunk)
        self._end_if_completed()

    def piece_failed(self, reason: str) -> None:
        """Implements CopyJob.piece_failed(). Chunks in flight are not published."""
        self._failed = True
        self._drop_rest(reason)

    def device_failed(self, reason: str) -> bool:
        """Implements CopyJob.device_failed(). Chunks in flight, and the session, are kept until the process ends."""
        if self._granted is None:
            self._counts.failed += len(self._plan)
            self.reject(reason)
            return False
        self._failed = True
        self._drop_rest(reason)
        self._end_if_completed()
        if self._in_flight:
            self._counts.failed += sum(len(chunk.pages) for chunk in self._in_flight)
            self._decide(StoreResult(self._granted.keep().codes, reason))
        return bool(self._in_flight)

    def _give_up_asking(self) -> None:
        if self._pending is not None:
            self._pending.give_up(self._settings.reserve_timeout)
        self.reject(_NO_RESPONSE)

    def _take(self, reservation: Reservation) -> None:
        """Accepts the response: cuts the granted pages into chunks, as far as the backlog has room."""
        granted = self._granted = GrantedPages(reservation)
        skips = self._plan.transfers[0].slots.skips
        self._abandon(granted.open[skips[granted.open]], _SKIPPED)
        pages = granted.open
        frames = granted.locate(pages, self._plan.transfers[0].page_bytes)
        found = len(frames.table) if frames is not None else 0
        kept = self._backlog.accept(self._sizes[pages[:found]])
        self._counts.left_out += found - kept
        self._counts.failed += len(pages) - found
        self._abandon(pages[kept:found], _LEFT_OUT)
        self._abandon(pages[found:], _UNUSABLE)
        if frames is not None:
            self._cut(pages[:kept], frames)
        self._update_result()
        self._end_if_completed()

    def _cut(self, pages: Indices, frames: Frames) -> None:
        at = 0
        for some in chunks_of(pages, self._sizes, self._settings.chunk):
            table = frames.table[at : at + len(some)]
            self._chunks.append(Chunk(some, Frames(frames.arena, table), int(self._sizes[some].sum())))
            at += len(some)

    def _copies(self, chunk: Chunk) -> Iterator[Copy]:
        for transfer in self._plan.transfers:
            some = picked(transfer, chunk.pages)
            yield Copy(Direction.STORE, some, chunk.frames, range(len(transfer.planes)))

    def _publish(self, chunk: Chunk) -> None:
        assert self._granted is not None
        stored = self._granted.publish(chunk.pages)
        self._counts.failed += len(chunk.pages) - stored
        self._counts.stored += chunk.nbytes if stored == len(chunk.pages) else 0
        self._update_result()

    def _drop_rest(self, reason: str) -> None:
        """Abandons the chunks that were not started."""
        while self._chunks:
            chunk = self._chunks.pop()
            self._backlog.release(chunk.nbytes)
            self._give_up(chunk, reason)

    def _give_up(self, chunk: Chunk, reason: str) -> None:
        """Abandons a chunk that no copies write to."""
        if self._cancelled:
            self._counts.cancelled += len(chunk.pages)
        else:
            self._counts.failed += len(chunk.pages)
        self._abandon(chunk.pages, reason)

    def _abandon(self, pages: Indices, reason: str) -> None:
        if self._granted is not None and len(pages):
            self._reason = self._reason or reason
            self._granted.abandon(pages)
            self._update_result()

    def _update_result(self) -> None:
        if self._granted is not None:
            current = self._granted.result
            self.result = StoreResult(current.codes, self._reason or current.reason)

    def _end_if_completed(self) -> None:
        if self._granted is not None and not self._chunks and not self._in_flight and not self.decided:
            self._granted.release(time.monotonic_ns() - self._began_ns if self._began_ns else 0)
            self._settle(self.result)

    def _settle(self, result: StoreResult) -> None:
        self._ended = True
        self._decide(result)

    def _decide(self, result: StoreResult) -> None:
        with self._changed:
            self.result, self.decided = result, True
            self._changed.notify_all()
