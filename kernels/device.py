"""The interface of a device for asynchronous copies: streams, events and their order. The host implements it too."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

import msgspec

from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.transfer import Transfer
from pagetier.shm.errors import PagetierError


class DeviceError(PagetierError, RuntimeError):
    """An operation on the device failed, or the device is gone. Copies in flight may or may not have completed."""


class Direction(Enum):
    """The direction of a copy."""

    STORE = "store"  # from the cache into pages
    LOAD = "load"


class Copy(msgspec.Struct, frozen=True, eq=False):
    """A copy of some planes of a transfer. `planes` are rows of its table, see `Transfer.by_layer`."""

    direction: Direction
    transfer: Transfer
    frames: Frames
    planes: range


class EngineEvent:
    """Wraps an engine's event for `Stream.after`, to learn whether the event failed.

    After a failure `reason` says why (it is empty otherwise) and `lost` is called from any thread, both before any
    later event completes. The stream then continues, but skips copies of `transfer` that were enqueued behind the
    event; other copies are done.
    """

    def __init__(self, event: object, transfer: Transfer | None = None) -> None:
        self.event, self.transfer = event, transfer
        self.reason = ""
        self.lost: Callable[[], object] = lambda: None

    def lose(self, reason: str) -> None:
        """Records that the event failed; called by the stream."""
        self.reason = reason
        self.lost()


def event_of(after: object) -> object:
    """Returns the event inside an EngineEvent; anything else is returned unchanged."""
    return after.event if isinstance(after, EngineEvent) else after


class Event(Protocol):
    """A point in a stream. It completes when all work that was enqueued before it has ended."""

    def done(self) -> bool:
        """Returns whether the event has completed, without waiting. Raises DeviceError if work before it failed."""

    def wait(self, seconds: float) -> bool:
        """Waits until the event has completed; returns False after `seconds`. Raises DeviceError as done() does."""

    def make_stream_wait(self, stream: object) -> None:
        """Orders later work of an engine's own stream behind this event, without blocking the host.

        That work also runs if the copies failed: callers that need to know check done() afterwards.

        Args:
            stream: A stream of the engine's library; the device defines its type.

        Raises:
            DeviceError: The device failed.
            ValueError: `stream` is not a stream of this device.
        """


class Stream(Protocol):
    """A queue of work that runs in order. Two streams are not ordered. Not thread-safe: one thread at a time."""

    def after(self, event: object) -> None:
        """Orders later copies of this stream behind an engine's event, or an EngineEvent around one.

        Raises:
            DeviceError: The device failed.
            ValueError: `event` is not an event of this device.
        """

    def enqueue(self, copy: Copy) -> None:
        """Starts a copy and returns at once.

        Both memories must stay valid, and the source unchanged, until the copy has ended.

        Raises:
            DeviceError: The device failed.
            ValueError: The device cannot address the memory.
        """

    def record(self) -> Event:
        """Returns the point after everything that was enqueued so far. Raises DeviceError."""

    def call_after_events(self, call: Callable[[Event], object]) -> bool:
        """Calls `call` each time an event has completed, in any thread.

        Args:
            call: Gets the event. It never waits, and has no reference to the stream.

        Returns:
            False if the device cannot do it: then nothing is called, and the caller polls its events.
        """


class Device(Protocol):
    """The device of a cache, as far as copies are concerned."""

    @property
    def name(self) -> str:
        """Returns torch's name of the device, such as "cpu" or "cuda:0"; cache layouts use the same name."""

    def stream(self, direction: Direction) -> Stream:
        """Returns a new stream for copies in one direction. Raises DeviceError."""

    def engine_event(self) -> object | None:
        """Returns an event after all work that the calling thread has given to the engine's current stream.

        Returns None if there is nothing to wait for, because the engine works synchronously. Raises DeviceError.
        """

    def require_event(self, event: object) -> None:
        """Raises ValueError if Stream.after cannot take the event, as far as its type tells. Never waits."""
