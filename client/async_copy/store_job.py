"""A store as its lane sees it: asked for, granted, copied in chunks, published chunk by chunk."""

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

_AGAIN_S: Final = 2e-3
_UNHEARD = "the daemon did not answer in time"
_CANCELLED = "it was cancelled"
_LEFT_OUT = "copies can not keep up: the tail was left out"
_UNSOUND = "the pages' memory can not be used"
_SKIPPED = "some pages were to be skipped"


class StorePlan(msgspec.Struct, frozen=True, eq=False):
    """What is to be stored: transfers with an item for each page, and how room for the pages is asked for.

    ask: does not wait until it can be sent.
    """

    transfers: tuple[Transfer, ...]
    ask: Callable[[], PendingReservation]

    def __len__(self) -> int:
        return len(self.transfers[0].slots)


class Chunk(msgspec.Struct, frozen=True, eq=False):
    """Pages that are copied together, and where they lie."""

    pages: Indices
    frames: Frames
    nbytes: int


class ReservationQueue:
    """Where the stores of a lane ask for room. After one that the daemon's socket did not take all wait a moment."""

    def __init__(self) -> None:
        self._opens = -math.inf

    def ask(self, order: StorePlan, now: float) -> PendingReservation | None:
        """None: not now."""
        if now < self._opens:
            return None
        promise = order.ask()
        if promise.unsent:
            self._opens = now + _AGAIN_S
            return None
        return promise


class StoringJob(CopyJob):
    """Stores an order. One piece a chunk.

    result: what became of the pages by now. decided: whether that is final.
    """

    def __init__(
        self,
        order: StorePlan,
        door: ReservationQueue,
        backlog: CopyBacklog,
        settings: CopySettings,
        counts: Counts,
        after: object = None,
    ) -> None:
        super().__init__(after)
        self.result = StoreResult(bytes([Outcome.PENDING]) * len(order), "it goes on")
        self.decided = False
        self._order, self._door, self._backlog, self._settings, self._counts = order, door, backlog, settings, counts
        self._sizes = bytes_of_pages(order.transfers, len(order))
        self._promise: PendingReservation | None = None
        self._gives_up = math.inf
        self._grant: GrantedPages | None = None
        self._chunks: deque[Chunk] = deque()
        self._flying: deque[Chunk] = deque()
        self._reason = ""
        self._spoilt = False
        self._began_ns = 0

    def refuse(self, reason: str) -> None:
        """Ends it before it began: nothing of it is stored."""
        if self._promise is not None:
            self._promise.cancel()
        self._settle(StoreResult(bytes([Outcome.REFUSED]) * len(self._order), reason))

    def prepare(self, now: float) -> bool:
        """Once the daemon has answered, or was given up on."""
        if self._promise is None and not self._cancelled:
            # From when it could be asked for on: a device that holds up the lane is no fault of the daemon's.
            self._gives_up = min(self._gives_up, now + self._settings.patience)
            self._promise = self._door.ask(self._order, now)
        if self._cancelled:
            self._counts.cancelled += len(self._order)
            self.refuse(_CANCELLED)
        elif self._promise is not None and self._promise.ready:
            self._take(self._promise.wait(0.0))
        elif now >= self._gives_up:
            self._give_up_asking()
        return self._grant is not None or self.decided

    def next(self) -> Piece | None:
        """The next chunk."""
        if self._cancelled:
            self._drop_rest(_CANCELLED)
        if not self._chunks:
            self._end_if_landed()
            return None
        self._began_ns = self._began_ns or time.monotonic_ns()
        chunk = self._chunks.popleft()
        self._flying.append(chunk)
        return Piece(tuple(self._copies(chunk)), chunk.nbytes)

    def launched(self, event: Event) -> None:
        """The lane has the event; nobody else waits for it."""

    def landed(self) -> None:
        """The oldest chunk in flight is copied: it can be read from now on, unless it is not wanted any more."""
        chunk = self._flying.popleft()
        self._backlog.leave(chunk.nbytes)
        with self._changed:  # a cancel() is before this, or after it
            if self._cancelled or self._spoilt:
                self._give_up(chunk, _CANCELLED)
            else:
                self._publish(chunk)
        self._end_if_landed()

    def spoil(self, reason: str) -> None:
        """No chunk that is in flight is published."""
        self._spoilt = True
        self._drop_rest(reason)

    def fail(self, reason: str) -> bool:
        """Chunks in flight stay as they are until the process ends, and the session is held."""
        if self._grant is None:
            self._counts.failed += len(self._order)
            self.refuse(reason)
            return False
        self._spoilt = True
        self._drop_rest(reason)
        self._end_if_landed()
        if self._flying:
            self._counts.failed += sum(len(chunk.pages) for chunk in self._flying)
            self._decide(StoreResult(self._grant.keep().codes, reason))
        return bool(self._flying)

    def _give_up_asking(self) -> None:
        if self._promise is not None:
            self._promise.give_up(self._settings.patience)
        self.refuse(_UNHEARD)

    def _take(self, reservation: Reservation) -> None:
        """The daemon's answer: what was granted is cut into chunks, as far as the backlog has room."""
        grant = self._grant = GrantedPages(reservation)
        skips = self._order.transfers[0].slots.skips
        self._abandon(grant.open[skips[grant.open]], _SKIPPED)
        pages = grant.open
        frames = grant.locate(pages, self._order.transfers[0].page_bytes)
        found = len(frames.table) if frames is not None else 0
        kept = self._backlog.admit(self._sizes[pages[:found]])
        self._counts.left_out += found - kept
        self._counts.failed += len(pages) - found
        self._abandon(pages[kept:found], _LEFT_OUT)
        self._abandon(pages[found:], _UNSOUND)
        if frames is not None:
            self._cut(pages[:kept], frames)
        self._note()
        self._end_if_landed()

    def _cut(self, pages: Indices, frames: Frames) -> None:
        at = 0
        for some in chunks_of(pages, self._sizes, self._settings.chunk):
            table = frames.table[at : at + len(some)]
            self._chunks.append(Chunk(some, Frames(frames.arena, table), int(self._sizes[some].sum())))
            at += len(some)

    def _copies(self, chunk: Chunk) -> Iterator[Copy]:
        for transfer in self._order.transfers:
            some = picked(transfer, chunk.pages)
            yield Copy(Direction.STORE, some, chunk.frames, range(len(transfer.planes)))

    def _publish(self, chunk: Chunk) -> None:
        assert self._grant is not None
        stored = self._grant.publish(chunk.pages)
        self._counts.failed += len(chunk.pages) - stored
        self._counts.stored += chunk.nbytes if stored == len(chunk.pages) else 0
        self._note()

    def _drop_rest(self, reason: str) -> None:
        """What was not begun comes back at once."""
        while self._chunks:
            chunk = self._chunks.pop()
            self._backlog.leave(chunk.nbytes)
            self._give_up(chunk, reason)

    def _give_up(self, chunk: Chunk, reason: str) -> None:
        """Nothing writes to it any more, and nobody wants it."""
        if self._cancelled:
            self._counts.cancelled += len(chunk.pages)
        else:
            self._counts.failed += len(chunk.pages)
        self._abandon(chunk.pages, reason)

    def _abandon(self, pages: Indices, reason: str) -> None:
        if self._grant is not None and len(pages):
            self._reason = self._reason or reason
            self._grant.abandon(pages)
            self._note()

    def _note(self) -> None:
        if self._grant is not None:
            told = self._grant.result
            self.result = StoreResult(told.codes, self._reason or told.reason)

    def _end_if_landed(self) -> None:
        if self._grant is not None and not self._chunks and not self._flying and not self.decided:
            self._grant.let_go(time.monotonic_ns() - self._began_ns if self._began_ns else 0)
            self._settle(self.result)

    def _settle(self, result: StoreResult) -> None:
        self._ended = True
        self._decide(result)

    def _decide(self, result: StoreResult) -> None:
        with self._changed:
            self.result, self.decided = result, True
            self._changed.notify_all()
