"""A store: its handle, and the job that reserves memory, copies the granted pages in chunks and publishes each chunk.

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

import time
from collections import deque

import numpy as np

from pagetier.client.arguments import seconds_of
from pagetier.client.async_copy.arena_pages import Chunk, Indices, bytes_of_pages, cut, located
from pagetier.client.async_copy.job import CopyJob, Piece
from pagetier.client.async_copy.store_resources import MemoryRequest, StoreResources
from pagetier.client.keys import Keys
from pagetier.client.reservation import Reservation
from pagetier.client.store_result import Outcome, StoreResult
from pagetier.kernels.device import Event
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.transfer import Transfer
from pagetier.shm._core import Session

_NO_RESPONSE = "the daemon did not answer in time"
_CANCELLED = "the store was cancelled"
_DROPPED = "copies cannot keep up: the last pages were dropped"
_UNUSABLE = "the memory of some pages cannot be used"
_SKIPPED = "some pages were marked as skipped"


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
        """Makes a store of the pages of these keys; each of the transfers is of all pages. See MemoryRequest."""
        super().__init__(after)
        self.result = StoreResult(bytes([Outcome.PENDING]) * len(keys), "the store is in progress")
        self.decided = False
        self._keys, self._transfers = keys, transfers
        self._request = MemoryRequest(resources, keys, delay)
        self._backlog, self._settings, self._counts = resources.backlog, resources.settings, resources.counts
        self._sizes = bytes_of_pages(transfers, len(keys))
        self._reservation: Reservation | None = None
        self._chunks: deque[Chunk] = deque()
        self._in_flight: deque[Chunk] = deque()
        self._reason = ""
        self._failed = False
        self._began_ns = 0

    def begin_now(self) -> None:
        """Ends the delay: something waits for the store. Thread-safe; has no effect in a forked child."""
        if self._request.delay and not self.foreign:
            self._request.delay = 0.0
            self._wake()

    def reject(self, reason: str) -> None:
        """Ends the store before it started: all pages are rejected."""
        self._request.cancel()
        self._settle(StoreResult(bytes([Outcome.REFUSED]) * len(self._keys), reason))

    def prepare(self, now: float) -> bool:
        """Implements CopyJob.prepare(). The store starts when the daemon has answered, or its time is over."""
        if self._cancelled:
            self._counts.cancelled += len(self._keys)
            self.reject(_CANCELLED)
        elif (reservation := self._request.poll(now, self._wake)) is not None:
            self._take(reservation)
        elif self._request.gave_up:
            self.reject(_NO_RESPONSE)
        return self._reservation is not None or self.decided

    def retry_after(self, now: float) -> float:
        """Implements CopyJob.retry_after(): the response, a cancel and begin_now() wake the queue."""
        return self._request.retry_after(now)

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
        return chunk.piece(self._transfers)

    def enqueued(self, event: Event) -> None:
        """Implements CopyJob.enqueued(). Only the stream queue waits for the event."""

    def completed(self, began: float, ended: float) -> None:
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
        slots = self._transfers[0].slots
        if len(slots.skip):
            self._abandon(reservation.open[slots.skips[reservation.open]], _SKIPPED)
        pages, frames = reservation.open, self._frames_of(reservation)
        found = len(frames.table) if frames is not None else 0
        kept = self._backlog.accept(self._sizes[pages[:found]])
        self._counts.dropped += found - kept
        self._counts.failed += len(pages) - found
        self._abandon(pages[kept:found], _DROPPED)
        self._abandon(pages[found:], _UNUSABLE)
        if frames is not None:
            self._chunks.extend(cut(pages[:kept], frames, self._sizes, self._settings.chunk))
        self._update_result()
        self._end_if_completed()

    def _frames_of(self, reservation: Reservation) -> Frames | None:
        """Returns the location of the open pages, of as many as can be found, from the first on."""
        session = reservation.session
        if session is None or not session.usable:
            return None
        return located(session, reservation.entries[reservation.open].tolist(), self._transfers[0].page_bytes)

    def _publish(self, chunk: Chunk) -> None:
        assert self._reservation is not None
        codes = np.frombuffer(self._reservation.publish(chunk.pages).codes, np.uint8)
        stored = codes[chunk.pages].tobytes().count(Outcome.STORED)  # the others were doomed since
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


class StoreHandle:
    """A store of pages from the engine's cache. Made by AsyncCopier.store(). Thread-safe.

    Dropping the handle does not cancel the store. The content of the blocks must not change until the store is ready or
    cancelled.
    """

    def __init__(self, job: StoringJob) -> None:
        self._job = job

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once, with the final result."""
        return self._job.decided or self._job.foreign

    def wait(self, timeout: float) -> StoreResult:
        """Returns what became of each page, after waiting at most `timeout` seconds for the final result.

        Pages that are not finished by then are pending. May be called again. A timeout above 0 begins a delayed store.
        In a forked child all pages are rejected.
        """
        if self._job.foreign:
            refused = bytes([Outcome.REFUSED]) * len(self._job.result)
            return StoreResult(refused, "the store was started in another process")
        if (seconds := seconds_of("timeout", timeout)) > 0:
            self.begin()
        if not self._job.decided:
            self._job.wait_until(lambda: self._job.decided, seconds)
        return self._job.result

    def begin(self) -> None:
        """Begins a delayed store. Never waits, and has no effect on one that has begun."""
        self._job.begin_now()

    @property
    def ended(self) -> bool:
        """Whether the store no longer reads the cache, also after cancel(). If the device failed, this stays False."""
        return self._job.ended

    def wait_ended(self, timeout: float) -> bool:
        """Returns whether the store has ended, after waiting for it at most `timeout` seconds.

        A timeout above 0 begins a delayed store.
        """
        if (seconds := seconds_of("timeout", timeout)) > 0:
            self.begin()
        return self._job.ended or self._job.wait_until(lambda: self._job.ended, seconds)

    def cancel(self) -> None:
        """Abandons all pages that are not readable when the call returns: their blocks may then be overwritten.

        The memory of the blocks must exist until the store has ended. Has no effect once the store is ready.
        """
        self._job.cancel()

    def __repr__(self) -> str:
        return f"<StoreHandle {'ready' if self.ready else 'in progress'}, {self._job.result!r}>"
