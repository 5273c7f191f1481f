"""Pieces of copies that are in flight, and the one whose event wakes the thread that follows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import zip_longest

import msgspec

from pagetier.client.async_copy.job import CopyJob
from pagetier.kernels.device import DeviceError, Event


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
