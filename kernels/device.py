"""What asynchronous copies need of a device: streams, events, and an order between them. The host is one, too."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

import msgspec

from .frames import Frames
from .transfer import Transfer


class DeviceError(RuntimeError):
    """Work on the device failed, or the device is gone. What was in flight may or may not have happened."""


class Direction(Enum):
    """Which way bytes go."""

    STORE = "store"  # from the cache into pages
    LOAD = "load"


class Copy(msgspec.Struct, frozen=True, eq=False):
    """Some planes of a transfer. planes: rows of its table, see Transfer.planes_of."""

    direction: Direction
    transfer: Transfer
    frames: Frames
    planes: range


class Gate:
    """An engine's event, and whom to tell should it fail: Stream.after takes it in place of the event.

    reason: why the event failed; empty if it did not. lost: called then, by any thread. Both before any event behind it
    comes: the stream goes on, but copies of `transfer` that were enqueued behind it are left out. Others are done.
    """

    def __init__(self, event: object, transfer: Transfer | None = None) -> None:
        self.event, self.transfer = event, transfer
        self.reason = ""
        self.lost: Callable[[], object] = lambda: None

    def lose(self, reason: str) -> None:
        """For the stream: the event failed."""
        self.reason = reason
        self.lost()


def event_of(after: object) -> object:
    """What a gate is for; anything else is an event itself."""
    return after.event if isinstance(after, Gate) else after


class Event(Protocol):
    """A point in a stream: it has come when all work that was enqueued before it has ended."""

    def done(self) -> bool:
        """Whether it has come; never waits. Raises DeviceError if work before it failed."""

    def wait(self, seconds: float) -> bool:
        """Waits for it; False after so many seconds. Raises as done()."""

    def hold(self, stream: object) -> None:
        """Work that is given to an engine's own stream from now on begins after it; nobody waits on the host.

        It begins also where the copies failed after all: who has to know asks done() behind it.
        stream: as the engine's library has it; what that is, the device says. Raises DeviceError, and ValueError for
        what is no stream.
        """


class Stream(Protocol):
    """Work in order; that of two streams is in no order. For one thread at a time."""

    def after(self, event: object) -> None:
        """What is enqueued from now on begins after an event of the engine's, or a Gate of one; see the device.

        Raises DeviceError, and ValueError for what is no event.
        """

    def enqueue(self, copy: Copy) -> None:
        """Begins a copy and does not wait for it. Both memories stay, and what is read is not written, until it ended.

        Raises DeviceError, and ValueError for what the device can not address.
        """

    def record(self) -> Event:
        """The point after all that was enqueued so far. Raises DeviceError."""


class Device(Protocol):
    """Where a cache is, as far as copies are concerned."""

    @property
    def name(self) -> str:
        """By torch's name, such as "cpu" or "cuda:0"; the same as that of the layouts of its caches."""

    def stream(self, direction: Direction) -> Stream:
        """A stream of its own for copies one way. Raises DeviceError."""

    def require_event(self, event: object) -> None:
        """Raises ValueError for what Stream.after can not take, as far as that can be told by its type; never waits."""
