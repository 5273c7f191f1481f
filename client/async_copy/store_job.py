"""A store as a copy job: it reserves memory, copies the granted pages in chunks, and publishes each chunk.

The stream queue calls these steps in its thread, in this order:

1. prepare() sends the request for memory, and is called again until the daemon has answered or its time is over.
2. _take() retains the arena, which stays mapped until the store has ended, and abandons the pages that are not copied.
   It cuts the others into chunks.
3. next() returns a chunk. The queue enqueues its copies after the engine's event, before which the blocks do not have
   their content, and records an event of its own behind them.
4. completed() is called when that event has come. Only now are the bytes in the arena, so only now is the chunk
   published: a page that became readable before would be served with bytes of whatever was in its frames.
5. After the last chunk the arena is released, and the result is final.

A page is abandoned only when nothing that was enqueued can still write to it, because the daemon may use its frames for
another page at once. So after a cancel, or a copy that failed, chunks in flight are abandoned in step 4; and after a
failure of the device, whose events never come, they are kept until the process ends.

If the process dies, what was published stays: a prefix of the prompt, which is useful without the rest. The daemon
dooms the other pages, and does not use their frames for a while (its quarantine), since a device may still write.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator

import msgspec
import numpy as np

from pagetier.client.async_copy.arena_pages import Indices, bytes_of_pages, chunks_of, located, picked
from pagetier.client.async_copy.job import CopyJob, Piece
from pagetier.client.async_copy.store_resources import StoreResources
from pagetier.client.keys import Keys
from pagetier.client.pending_reservation import PendingReservation
from pagetier.client.reservation import Reservation
from pagetier.client.store_result import Outcome, StoreResult
from pagetier.kernels.device import Copy, Direction, Event
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.transfer import Transfer
from pagetier.shm._core import Session

_NO_RESPONSE = "the daemon did not answer in time"
_CANCELLED = "the store was cancelled"
_DROPPED = "copies cannot keep up: the last pages were dropped"
_UNUSABLE = "the memory of some pages cannot be used"
_SKIPPED = "some pages were marked as skipped"


class Chunk(msgspec.Struct, frozen=True, eq=False):
    """Pages that are copied together, their location and their size."""

    pages: Indices
    frames: Frames
    nbytes: int


class StoringJob(CopyJob):
    """A store of pages. Each chunk of pages is one piece.

    Attributes:
        result: What became of the pages so far.
        decided: Whether that is final.
    """

    has_work_after_each_piece = True  # its pages become readable

    def __init__(
        self,
        resources: StoreResources,
        keys: Keys,
        transfers: tuple[Transfer, ...],
        after: object = None,
        delay: float = 0.0,
    ) -> None:
        """Makes a store of the pages of these keys; each of the transfers is of all pages.

        `delay`: seconds from the first prepare() until the store starts, unless begin_now() is called before.
        """
        super().__init__(after)
        self.result = StoreResult(bytes([Outcome.PENDING]) * len(keys), "the store is in progress")
        self.decided = False
        self._resources, self._keys, self._transfers = resources, keys, transfers
        self._backlog, self._settings, self._counts = resources.backlog, resources.settings, resources.counts
        self._sizes = bytes_of_pages(transfers, len(keys))
        self._delay, self._begins_at = delay, math.inf
        self._pending: PendingReservation | None = None
        self._give_up_at = math.inf
        self._reservation: Reservation | None = None
        self._chunks: deque[Chunk] = deque()
        self._in_flight: deque[Chunk] = deque()
        self._reason = ""
        self._failed = False
        self._began_ns = 0

    def begin_now(self) -> None:
        """Ends the delay: something waits for the store. Thread-safe; has no effect in a forked child."""
        if self._delay and not self.foreign:
            self._delay = 0.0
            self._wake()

    def reject(self, reason: str) -> None:
        """Ends the store before it started: all pages are rejected."""
        if self._pending is not None:
            self._pending.cancel()
        self._settle(StoreResult(bytes([Outcome.REFUSED]) * len(self._keys), reason))

    def prepare(self, now: float) -> bool:
        """Implements CopyJob.prepare(). The store starts when the daemon has answered, or its time is over."""
        if self._start_delay(now):
            return False
        if self._pending is None and not self._cancelled:
            # The time starts with the first attempt to send: the daemon has no part in a delay by the device.
            self._give_up_at = min(self._give_up_at, now + self._settings.reserve_timeout)
            self._pending = self._resources.reserve(self._keys, now)
            if self._pending is not None:
                self._pending.call_when_ready(self._wake)
        if self._cancelled:
            self._counts.cancelled += len(self._keys)
            self.reject(_CANCELLED)
        elif self._pending is not None and self._pending.ready:
            self._take(self._pending.wait(0.0))
        elif now >= self._give_up_at:
            if self._pending is not None:
                # What the daemon grants later is abandoned as soon as its response is read.
                self._pending.give_up(self._settings.reserve_timeout)
            self.reject(_NO_RESPONSE)
        return self._reservation is not None or self.decided

    def _start_delay(self, now: float) -> bool:
        """Starts the delay at the first call. Returns whether it still runs."""
        self._begins_at = min(self._begins_at, now + self._delay)
        return bool(self._delay) and now < self._begins_at and not self._cancelled

    def retry_after(self, now: float) -> float:
        """Implements CopyJob.retry_after(): the response, a cancel and begin_now() wake the queue."""
        if self._start_delay(now):
            return self._begins_at - now
        ends = self._give_up_at if self._pending is not None else min(self._give_up_at, self._resources.next_attempt)
        return max(0.0, ends - now)

    def next(self) -> Piece | None:
        """Implements CopyJob.next(). Returns the next chunk."""
        if self._cancelled:
            self._drop_rest(_CANCELLED)  # nothing was enqueued that could write to them
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
        with self._lock:  # so that a cancel() comes either before or after the publishing
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
        if self._reservation is None:
            self._counts.failed += len(self._keys)
            self.reject(reason)
            return False
        self._failed = True
        self._drop_rest(reason)
        self._end_if_completed()
        if self._in_flight:
            self._counts.failed += sum(len(chunk.pages) for chunk in self._in_flight)
            self._reservation.keep()  # the device may still write to their frames, so they are not released
            # Decided, never ended: callers have the result, and the queue must keep the job until the process ends.
            self._decide(StoreResult(self._reservation.result.codes, reason))
        return bool(self._in_flight)

    def _take(self, reservation: Reservation) -> None:
        """Accepts the response: cuts the granted pages into chunks, as far as the backlog has room.

        What there is no room for is dropped from the end, since a page is of no use without those before it.
        """
        self._reservation = reservation
        if reservation.session is not None:
            reservation.session.retain_arena()  # before addresses in it are computed
        skips = self._transfers[0].slots.skips
        self._abandon(reservation.open[skips[reservation.open]], _SKIPPED)
        pages = reservation.open
        frames = self._frames_of(reservation)
        found = len(frames.table) if frames is not None else 0
        kept = self._backlog.accept(self._sizes[pages[:found]])
        self._counts.dropped += found - kept
        self._counts.failed += len(pages) - found
        self._abandon(pages[kept:found], _DROPPED)
        self._abandon(pages[found:], _UNUSABLE)
        if frames is not None:
            self._cut(pages[:kept], frames)
        self._update_result()
        self._end_if_completed()

    def _frames_of(self, reservation: Reservation) -> Frames | None:
        """Returns the location of the open pages, of as many as can be found, from the first on."""
        session = reservation.session
        if session is None or not session.usable:
            return None
        return located(session, reservation.entries[reservation.open].tolist(), self._transfers[0].page_bytes)

    def _cut(self, pages: Indices, frames: Frames) -> None:
        at = 0
        for some in chunks_of(pages, self._sizes, self._settings.chunk):
            table = frames.table[at : at + len(some)]
            self._chunks.append(Chunk(some, Frames(frames.arena, table), int(self._sizes[some].sum())))
            at += len(some)

    def _copies(self, chunk: Chunk) -> Iterator[Copy]:
        for transfer in self._transfers:
            some = picked(transfer, chunk.pages)
            yield Copy(Direction.STORE, some, chunk.frames, range(len(transfer.planes)))

    def _publish(self, chunk: Chunk) -> None:
        assert self._reservation is not None
        codes = np.frombuffer(self._reservation.publish(chunk.pages).codes, np.uint8)
        stored = int((codes[chunk.pages] == Outcome.STORED).sum())  # the others were doomed since
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
        if self._reservation is not None and len(pages):
            self._reason = self._reason or reason
            self._reservation.abandon(pages)
            self._update_result()

    def _update_result(self) -> None:
        if self._reservation is not None:
            current = self._reservation.result
            self.result = StoreResult(current.codes, self._reason or current.reason)

    def _end_if_completed(self) -> None:
        if self._reservation is not None and not self._chunks and not self._in_flight and not self.decided:
            self._release(self._reservation.session)
            self._settle(self.result)

    def _release(self, session: Session | None) -> None:
        """Releases the arena, since no page is open any more, and counts the time of copying."""
        if session is not None:
            session.count_time(0, time.monotonic_ns() - self._began_ns if self._began_ns else 0)
            session.release_arena()

    def _settle(self, result: StoreResult) -> None:
        # Decided: callers have the result, so the store is ready. Ended: the queue forgets the job.
        with self._lock:  # a store that has ended is also ready
            self._decide(result)
            self._ended = True

    def _decide(self, result: StoreResult) -> None:
        with self._lock:
            self.result, self.decided = result, True
            self._changed.wake_all()
