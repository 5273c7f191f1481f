"""A load as its lane sees it: pinned pages, layer by layer."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from pagetier.client.async_copy.arena_pages import located
from pagetier.client.async_copy.job import CopyJob, Counts, Piece
from pagetier.client.match import Match
from pagetier.kernels.device import Copy, Direction, Event
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.transfer import Transfer
from pagetier.shm._core import Pins, Session


class Source(msgspec.Struct, frozen=True, eq=False):
    """Pages that are pinned for one load alone, and where they go. The session is held until let_go()."""

    session: Session
    pins: Pins
    transfer: Transfer
    frames: Frames

    @property
    def tokens(self) -> int:
        """How many are copied."""
        slots = self.transfer.slots
        return int((slots.pages[:, 2] - slots.pages[:, 1])[~slots.skips].sum())

    def let_go(self) -> None:
        """Ends pins and hold."""
        self.pins.release()
        self.session.unhold()


def source_of(match: Match, transfer: Transfer, first: int) -> Source | None:
    """Pins pages of a match from `first` on, as many as the transfer takes and are of its size; None: none."""
    session = match.session
    if session is None or not match.held:
        return None
    session.hold()
    if session.usable and first >= 0:
        source = _pinned(session, match, transfer, first)
        if len(source.frames.table):
            return source
        source.pins.release()
    session.unhold()
    return None


def _pinned(session: Session, match: Match, transfer: Transfer, first: int) -> Source:
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


class LoadingJob(CopyJob):
    """Loads a source, or nothing. One piece a layer.

    pages, layers: how many. reason: why it failed, or nothing.
    """

    def __init__(self, source: Source | None, layers: int, counts: Counts, after: object = None) -> None:
        super().__init__(after)
        self.pages = len(source.frames.table) if source else 0
        self.layers = layers
        self.reason = ""
        self._source = source
        self._counts = counts
        self._events: list[Event] = []
        self._begun = self._landed = 0
        self._sound = layers
        self._ended = source is None
        self._began_ns = 0

    def event(self, layer: int) -> Event | None:
        """Behind a layer that was enqueued; None where it was not, or could not be."""
        return self._events[layer] if layer < min(len(self._events), self._sound) else None

    def decided(self, layer: int) -> bool:
        """Whether the layer is enqueued, or will not be."""
        return layer < len(self._events) or self._ended or self._cancelled or bool(self.reason)

    def has_landed(self, layer: int) -> bool:
        """Whether the layer is there."""
        return layer < min(self._landed, self._sound)

    def prepare(self, now: float) -> bool:
        """There is nothing to wait for."""
        return True

    def next(self) -> Piece | None:
        """The next layer."""
        source = self._source
        if source is None or self._cancelled or self.reason or self._begun == self.layers:
            self._end_if_landed()
            return None
        if not self._begun:
            self._began_ns = time.monotonic_ns()
        planes = source.transfer.planes_of(range(self._begun, self._begun + 1))
        self._begun += 1
        rows = source.transfer.planes[planes.start : planes.stop]
        nbytes = source.tokens * int((rows[:, 6] * rows[:, 7]).sum())
        return Piece((Copy(Direction.LOAD, source.transfer, source.frames, planes),), nbytes)

    def launched(self, event: Event) -> None:
        """Whoever waits for this layer waits for its event from now on."""
        self._events.append(event)
        self._tell()

    def landed(self) -> None:
        """A layer is there."""
        self._landed += 1
        self._end_if_landed()

    def spoil(self, reason: str) -> None:
        """Layers that were enqueued before are sound."""
        if not self.reason:
            self._sound = min(self._sound, len(self._events))
            self._give_up(reason)

    def fail(self, reason: str) -> bool:
        """Pins and hold are kept while the device may still read the pages."""
        self._give_up(reason)
        if self._begun > self._landed:
            return True
        self._end_if_landed()
        return False

    def _give_up(self, reason: str) -> None:
        self._counts.failed += self.pages
        self.reason = reason
        self._tell()

    def _end_if_landed(self) -> None:
        """When no more is begun and all that was has landed."""
        source = self._source
        over = self._begun == self.layers or self._cancelled or self.reason
        if source is None or not over or self._begun > self._landed:
            return
        self._source = None
        self._count(source)
        source.let_go()
        self._ended = True
        self._tell()

    def _count(self, source: Source) -> None:
        if not self.reason and self._landed == self.layers:
            nbytes = source.transfer.nbytes
            self._counts.loaded += nbytes
            source.session.count_loaded(self.pages, nbytes)
            source.session.count_time(time.monotonic_ns() - self._began_ns, 0)
        elif not self.reason:
            self._counts.cancelled += self.pages
