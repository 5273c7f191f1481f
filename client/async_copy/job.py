"""The interface of a copy job, a store or load that a stream queue runs piece by piece, and its pieces in flight."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import ClassVar, Protocol

import msgspec

from pagetier.kernels.device import Copy, DeviceError, Event
from pagetier.shm.safe_event import SafeCondition


class Piece(msgspec.Struct, frozen=True, eq=False):
    """Copies that are enqueued together before one event.

    Attributes:
        copies: The copies.
        nbytes: The number of bytes that they move.
    """

    copies: tuple[Copy, ...]
    nbytes: int


class Waker(Protocol):
    """The part of a stream queue that a job uses."""

    def wake(self) -> None:
        """Reports that a job has changed. Thread-safe; never waits."""


class CopyJob(ABC):
    """A store or load.

    Its abstract methods are for its stream queue, one thread at a time; the others are thread-safe.

    Attributes:
        has_work_after_each_piece: Whether completed() has to be called as soon as a piece is copied. If it is False,
            this can wait until all pieces of the job that are in flight are copied.
        taken: Whether the stream queue's thread has taken the job.
    """

    has_work_after_each_piece: ClassVar[bool]

    def __init__(self, after: object = None) -> None:
        """Copies start after `after`, an event of the engine; None to start at once."""
        self._after = after
        self._pid = os.getpid()
        self._changed = SafeCondition()
        self._lock = self._changed.lock
        self._cancelled = False
        self._ended = False
        self._waker: Waker | None = None
        self.taken = False

    @property
    def cancelled(self) -> bool:
        """Whether the engine cancelled the job."""
        return self._cancelled

    @property
    def ended(self) -> bool:
        """Whether no copies of the job are running and it has no pages reserved or pinned.

        If the device failed during them, this stays False.
        """
        return self._ended

    @property
    def foreign(self) -> bool:
        """Whether the job is the parent's, seen from a forked child, which must not take its locks."""
        return self._pid != os.getpid()

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Returns whether the condition is true, after waiting for it at most `timeout` seconds.

        The condition is evaluated at each change of the job. Returns False at once in a forked child.
        """
        if self.foreign:
            return False
        with self._lock:
            return self._changed.wait_for(condition, max(0.0, timeout))

    def cancel(self) -> None:
        """Cancels the job: no further copies start, and copies that complete after this call do not count."""
        if self.foreign:
            return
        with self._lock:
            self._cancelled = True
            self._changed.wake_all()
        self._wake()

    def set_waker(self, waker: Waker | None) -> None:
        """Sets the stream queue to wake when the job changes: first of all, and None when the job has ended."""
        self._waker = waker

    def take_after(self) -> object:
        """Returns the event that the copies must wait for, for the stream queue; None in further calls."""
        after, self._after = self._after, None
        return after

    @abstractmethod
    def prepare(self, now: float) -> bool:
        """Returns whether the job can start, or has ended. The stream queue calls it again until then."""

    @abstractmethod
    def retry_after(self, now: float) -> float:
        """Returns the seconds after which prepare() must be called again, if nothing wakes the queue before."""

    @abstractmethod
    def next(self) -> Piece | None:
        """Returns the copies to enqueue next, which then count as in flight.

        None at the end: pages not started are released.
        """

    @abstractmethod
    def enqueued(self, event: Event) -> None:
        """Records the event of the last piece, which was enqueued."""

    @abstractmethod
    def completed(self, began: float, ended: float) -> None:
        """Records that the oldest piece in flight has completed.

        Args:
            began: From when on it may have been copied, by the clock; infinite if that is not known.
            ended: When it was found to be copied.
        """

    @abstractmethod
    def piece_failed(self, reason: str) -> None:
        """Ends the job because its last piece cannot be copied.

        Pieces in flight are released when they have completed.
        """

    @abstractmethod
    def device_failed(self, reason: str) -> bool:
        """Ends the job because the device failed, and releases what was not started.

        Returns whether pieces were in flight.

        A job with pieces in flight must be kept until the process ends.
        """

    def _wake(self) -> None:
        """Lets the stream queue look at the job. Thread-safe; never waits."""
        waker = self._waker
        if waker is not None:
            waker.wake()

    def _notify(self) -> None:
        with self._lock:
            self._changed.wake_all()


class Flight(msgspec.Struct, frozen=True, eq=False):
    """A piece that was enqueued. Without a job it is the event after which the copies of a job start.

    Attributes:
        job: The job of the piece, or None.
        event: Completes when the piece is copied.
        nbytes: The bytes of the piece.
        launched: When it was enqueued, by the queue's clock.
    """

    job: CopyJob | None
    event: Event
    nbytes: int
    launched: float

    def has_work_before(self, following: Flight) -> bool:
        """Returns whether there is work after this piece, before the following one is copied."""
        return self.job is None or self.job.has_work_after_each_piece or following.job is not self.job


class EventAlarm:
    """Wakes a thread when the event comes that it waits for. It has no reference to the stream."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._event: Event | None = None
        self._wake = wake

    def __call__(self, event: Event) -> None:
        """Called after each event of a stream, in any thread."""
        if event is self._event:
            self._wake()

    def set(self, flights: Iterable[Flight]) -> None:
        """Wakes the thread at the next event after which there is work, at once if it has come.

        The alarm is set before the event is looked at, and an event comes before the alarm is called, so it cannot be
        missed.
        """
        self._event = _next_event(list(flights))
        if self._event is not None and _has_come(self._event):
            self._wake()


def _next_event(flights: list[Flight]) -> Event | None:
    """Returns the first event in flight after which there is work; None if nothing is in flight.

    A load has work after the last of its pieces in flight. After the event of an engine there is the time to take.
    """
    for flight, following in zip_longest(flights, flights[1:]):
        if following is None or flight.has_work_before(following):
            return flight.event
    return None


def _has_come(event: Event) -> bool:
    """Returns whether an event has completed or will not, because the device failed."""
    try:
        return event.done()
    except DeviceError:
        return True


class Counts(msgspec.Struct):
    """Pages and bytes since the copier was created. Each stream queue has its own counts.

    Attributes:
        dropped: Granted pages that did not fit into the backlog.
        failed: Pages of stores and loads that failed.
        cancelled: Pages of stores and loads that were cancelled.
        stored: Bytes that were stored.
        loaded: Bytes that were loaded.
    """

    dropped: int = 0
    failed: int = 0
    cancelled: int = 0
    stored: int = 0
    loaded: int = 0

    def __add__(self, other: Counts) -> Counts:
        ours, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Counts(*(one + two for one, two in zip(ours, theirs, strict=True)))
