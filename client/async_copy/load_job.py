"""A load as a copy job: pinned pages, copied layer by layer.

1. pinned_source() retains the arena, which stays mapped until the load has ended, and pins the pages for the load
   itself, in the engine's thread: the engine may release its match as soon as the load was started.
2. next() returns one layer after the other, and many may be in flight. An engine waits for the event of the layer that
   it needs, so it computes with the first layers while the last are copied.
3. completed() counts the layers. The pages stay pinned until the last event has come, also after a cancel: the device
   reads their frames until then, and the daemon could give the frames of an unpinned page to another one.

After a failure of the device, whose events never come, they stay pinned until the process ends. If the process dies,
the daemon releases its pins; the pages are not changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import numpy as np

from pagetier.client.async_copy.arena_pages import located
from pagetier.client.async_copy.job import CopyJob, Counts, Piece
from pagetier.client.match import Match, MatchHandle
from pagetier.kernels.device import Copy, Direction, Event
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.transfer import Transfer
from pagetier.shm._core import Pins, Session


class Source(msgspec.Struct, frozen=True, eq=False):
    """Pages that are pinned for one load, and their destination. The arena is retained until release()."""

    session: Session
    pins: Pins
    transfer: Transfer
    frames: Frames

    @property
    def tokens(self) -> int:
        """The number of tokens that are copied."""
        slots = self.transfer.slots
        return int((slots.pages["end"] - slots.pages["first"])[~slots.skips].sum())

    def release(self) -> None:
        """Unpins the pages and releases the arena."""
        self.pins.release()
        self.session.release_arena()


def pinned_source(session: Session | None, match: Match | MatchHandle, transfer: Transfer, first: int) -> Source | None:
    """Returns pages of a match from `first` on, pinned for a load, or None if there are none.

    The pages end where the transfer does, at the first page of another size, or at the first one that is gone.

    Args:
        session: The session whose memory the pages are in; None for none.
        match: The pages: a match of this process, or a handle of one in another process.
        transfer: The copies of the pages from `first` on.
        first: The first page.
    """
    if session is None:
        return None
    session.retain_arena()  # before `usable` is read: a session that ends in between stays mapped until release_arena()
    if session.usable and first >= 0:
        source = _pinned(session, match, transfer, first)
        if len(source.frames.table):
            return source
        source.pins.release()
    session.release_arena()
    return None


def _pinned(session: Session, match: Match | MatchHandle, transfer: Transfer, first: int) -> Source:
    last = first + len(transfer.slots)
    pins = session.repin(Pins, None, match.entries[4 * first : 4 * last], match.serials[8 * first : 8 * last])
    skips = transfer.slots.skips[: len(pins)]
    other = (np.frombuffer(pins.sizes, np.uint64) != transfer.page_bytes) & ~skips
    count = int(other.argmax()) if other.any() else len(pins)
    entries = np.frombuffer(pins.entries, np.uint32)[:count]
    named = [None if skip else entry for entry, skip in zip(entries.tolist(), skips.tolist(), strict=False)]
    frames = located(session, named, transfer.page_bytes)
    slots = transfer.slots.some(0, len(frames.table))
    return Source(session, pins, msgspec.structs.replace(transfer, slots=slots), frames)


def _pieces_of(source: Source, layers: int) -> Iterator[Piece]:
    """Yields the copies of each layer."""
    tokens, transfer = source.tokens, source.transfer
    for planes, row_bytes in transfer.by_layer(layers):
        yield Piece((Copy(Direction.LOAD, transfer, source.frames, planes),), tokens * row_bytes)


class LoadingJob(CopyJob):
    """A load of a source, or of nothing. Each layer is one piece.

    Attributes:
        pages: The number of pages.
        layers: The number of layers.
        reason: Why the load failed, or empty.
    """

    has_work_after_each_piece = False  # who needs a layer waits for its event

    def __init__(self, source: Source | None, layers: int, counts: Counts, after: object = None) -> None:
        super().__init__(after)
        self.pages = len(source.frames.table) if source else 0
        self.layers = layers
        self.reason = ""
        self._source = source
        self._counts = counts
        self._events: list[Event] = []
        self._pieces = _pieces_of(source, layers) if source is not None else iter(())
        self._started = self._completed = 0
        self._valid = layers
        self._ended = source is None
        self._began_ns = 0

    def event(self, layer: int) -> Event | None:
        """Returns the event of a layer, or None if the layer is not or cannot be enqueued."""
        return self._events[layer] if layer < min(len(self._events), self._valid) else None

    def decided(self, layer: int) -> bool:
        """Returns whether the layer is enqueued, or never will be."""
        return layer < len(self._events) or self._ended or self._cancelled or bool(self.reason)

    def is_loaded(self, layer: int) -> bool:
        """Returns whether the layer is in the cache."""
        return layer < min(self._completed, self._valid)

    def prepare(self, now: float) -> bool:
        """Implements CopyJob.prepare(). A load can start at once."""
        return True

    def retry_after(self, now: float) -> float:
        """Implements CopyJob.retry_after()."""
        return 0.0

    def next(self) -> Piece | None:
        """Implements CopyJob.next(). Returns the next layer."""
        source = self._source
        if source is None or self._cancelled or self.reason or self._started == self.layers:
            self._end_if_completed()
            return None
        if not self._started:
            self._began_ns = time.monotonic_ns()
        self._started += 1
        return next(self._pieces)

    def enqueued(self, event: Event) -> None:
        """Implements CopyJob.enqueued(). Threads that wait for this layer wait for its event from now on."""
        self._events.append(event)
        self._notify()

    def completed(self) -> None:
        """Implements CopyJob.completed(). A layer is in the cache."""
        self._completed += 1
        self._end_if_completed()

    def piece_failed(self, reason: str) -> None:
        """Implements CopyJob.piece_failed(). Layers that were enqueued before are valid."""
        if not self.reason:
            self._valid = min(self._valid, len(self._events))
            self._give_up(reason)

    def device_failed(self, reason: str) -> bool:
        """Implements CopyJob.device_failed(). The pages stay pinned while the device may still read them."""
        self._give_up(reason)
        if self._started > self._completed:
            return True
        self._end_if_completed()
        return False

    def _give_up(self, reason: str) -> None:
        self._counts.failed += self.pages
        self.reason = reason
        self._notify()

    def _end_if_completed(self) -> None:
        """Releases the source when no further layers start and all enqueued ones have completed."""
        source = self._source
        over = self._started == self.layers or self._cancelled or self.reason
        if source is None or not over or self._started > self._completed:
            return
        self._source = None
        self._count(source)
        source.release()  # before the load counts as ended: a thread that waits for the end may close the client
        self._ended = True
        self._notify()

    def _count(self, source: Source) -> None:
        if not self.reason and self._completed == self.layers:
            nbytes = source.transfer.nbytes
            self._counts.loaded += nbytes
            source.session.count_loaded(self.pages, nbytes)
            source.session.count_time(time.monotonic_ns() - self._began_ns, 0)
        elif not self.reason:
            self._counts.cancelled += self.pages
