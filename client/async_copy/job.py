"""What a lane carries out, a store or a load, piece by piece; and how other threads wait for it."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import msgspec

from pagetier.kernels.device import Copy, Event


class Piece(msgspec.Struct, frozen=True, eq=False):
    """Copies that are enqueued together, before one event, and how many bytes they move."""

    copies: tuple[Copy, ...]
    nbytes: int


class Waker(Protocol):
    """Whoever carries a job out."""

    def wake(self) -> None:
        """Something about a job has changed. From any thread, waits for nobody."""


class CopyJob(ABC):
    """What is abstract is for its lane, one thread at a time; the rest may be called from any thread."""

    def __init__(self, after: object = None) -> None:
        """Its copies begin after an event of the engine's; None: at once."""
        self._after = after
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._cancelled = False
        self._ended = False
        self._waker: Waker | None = None

    @property
    def cancelled(self) -> bool:
        """Whether its owner gave it up."""
        return self._cancelled

    @property
    def ended(self) -> bool:
        """Whether nothing of it is copied any more and it holds nothing; never, where the device failed under it."""
        return self._ended

    @property
    def foreign(self) -> bool:
        """Whether it is the parent's, seen from a forked child: no lock of it may be taken there."""
        return self._pid != os.getpid()

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Whether it became true in so many seconds; it is looked at when something changes."""
        if self.foreign:
            return False
        with self._changed:
            return self._changed.wait_for(condition, max(0.0, timeout))

    def cancel(self) -> None:
        """Gives it up: nothing more is begun, and nothing counts that was not finished when this returns."""
        if self.foreign:
            return
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
        waker = self._waker
        if waker is not None:
            waker.wake()

    def carried_by(self, waker: Waker | None) -> None:
        """For its lane, before anything else and when it has ended: whom to tell of a change."""
        self._waker = waker

    def take_after(self) -> object:
        """For its lane: the event that it has to come after; the next time it is None."""
        after, self._after = self._after, None
        return after

    @abstractmethod
    def prepare(self, now: float) -> bool:
        """Whether it can begin, or has ended; asked again until then."""

    @abstractmethod
    def next(self) -> Piece | None:
        """What is to be enqueued now; it counts as in flight. None: no more, and what was not begun is let go of."""

    @abstractmethod
    def launched(self, event: Event) -> None:
        """The last piece was enqueued, and this is its event."""

    @abstractmethod
    def landed(self) -> None:
        """The event of the oldest piece in flight has come."""

    @abstractmethod
    def spoil(self, reason: str) -> None:
        """The last piece can not be copied: no more of them. What is in flight is let go of when it has landed."""

    @abstractmethod
    def fail(self, reason: str) -> bool:
        """The device failed. Lets go of what was not begun; whether it has to be kept, as it was in flight."""

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Counts(msgspec.Struct):
    """Pages and bytes since the copier was made. Each lane counts for itself.

    left_out: granted pages that did not fit into the backlog. failed, cancelled: pages of stores and loads that were
    begun, or asked for, and came to nothing. stored, loaded: bytes.
    """

    left_out: int = 0
    failed: int = 0
    cancelled: int = 0
    stored: int = 0
    loaded: int = 0

    def __add__(self, other: Counts) -> Counts:
        ours, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Counts(*(one + two for one, two in zip(ours, theirs, strict=True)))
