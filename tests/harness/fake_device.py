"""A simulated device whose copies happen when a test advances it: late, in parts, in any order of streams, or never."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from pagetier.kernels.device import Copy, DeviceError, Direction, Event, event_of
from pagetier.kernels.host.copy import gather, scatter


class EngineEvent:
    """An event that the engine's own stream reaches when the test says so."""

    def __init__(self) -> None:
        self.came = False


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self.came = False
        self._device = device

    def done(self) -> bool:
        self._device.check()
        return self.came

    def wait(self, seconds: float) -> bool:
        return self.done()

    def make_stream_wait(self, stream: object) -> None:
        self._device.check()
        assert isinstance(stream, FakeStream)
        stream.todo.append(self)


@dataclass(eq=False)
class Step:
    """One plane of a copy."""

    copy: Copy
    plane: int

    @property
    def frames(self) -> set[int]:
        return set(self.copy.frames.table.ravel().tolist())

    def perform(self) -> None:
        whole, plane = self.copy.transfer, slice(self.plane, self.plane + 1)
        part = msgspec.structs.replace(whole, planes=whole.planes[plane], layers=whole.layers[plane])
        (gather if self.copy.direction is Direction.STORE else scatter)(part, self.copy.frames)


@dataclass(eq=False)
class FakeStream:
    """The enqueued work, in order. `unconfirmed` has the frames written since the last event.

    After each event, `after_event` is called.
    """

    device: FakeDevice
    direction: Direction
    todo: deque[Step | FakeEvent | EngineEvent] = field(default_factory=deque)
    unconfirmed: set[int] = field(default_factory=set)
    after_event: Callable[[Event], object] = lambda event: None

    def after(self, event: object) -> None:
        self.device.check()
        its = event_of(event)
        if not isinstance(its, EngineEvent):
            raise ValueError("not an event of this engine")
        self.todo.append(its)

    def enqueue(self, copy: Copy) -> None:
        self.device.check()
        self.device.enqueue(self, copy)

    def record(self) -> FakeEvent:
        self.device.check()
        self.todo.append(FakeEvent(self.device))
        event = self.todo[-1]
        assert isinstance(event, FakeEvent)
        return event

    def call_after_events(self, call: Callable[[Event], object]) -> bool:
        self.after_event = call
        return True

    def advance(self) -> bool:
        """Does the next step. Returns False if no step can be done."""
        if not self.todo or (isinstance(self.todo[0], EngineEvent) and not self.todo[0].came):
            return False
        step = self.todo.popleft()
        if isinstance(step, Step):
            step.perform()
            self.unconfirmed |= step.frames
        elif isinstance(step, FakeEvent):
            self._confirm(step)
        return True

    def _confirm(self, event: FakeEvent) -> None:
        event.came = True
        if self.direction is Direction.STORE and not self.device.dead:
            self.device.confirmed |= self.unconfirmed
        self.unconfirmed = set()
        self.after_event(event)


class FakeDevice:
    """A simulated device.

    Attributes:
        confirmed: Frames that stores have written completely, up to their events.
        dead: Every call raises; enqueued work may still be done until gone() is called.
        unable: The number of the next copies that the device cannot address.
        fatal: The number of copies after which the device dies; below 0: never.
    """

    name = "cpu"

    def __init__(self, confirmed: set[int] | None = None) -> None:
        self.streams: list[FakeStream] = []
        self.confirmed: set[int] = set() if confirmed is None else confirmed
        self.dead = False
        self.unable = 0
        self.fatal = -1

    def stream(self, direction: Direction) -> FakeStream:
        self.check()
        self.streams.append(FakeStream(self, direction))
        return self.streams[-1]

    def engine_event(self) -> None:
        """Returns no event, because this engine works synchronously."""

    def require_event(self, event: object) -> None:
        """Raises ValueError for an event of another type. A wrong str is detected only by a stream."""
        if not isinstance(event, (EngineEvent, str)):
            raise ValueError(f"{type(event).__name__} is not an event of this engine")

    def check(self) -> None:
        if self.dead:
            raise DeviceError("the device is dead")

    def enqueue(self, stream: FakeStream, copy: Copy) -> None:
        if self.unable:
            self.unable -= 1
            raise ValueError("the device cannot address this")
        steps = [Step(copy, plane) for plane in copy.planes]
        if stream.direction is Direction.STORE and steps:
            assert not steps[0].frames & self.frames_of(*Direction), "a copy writes to frames that are in use"
            self.confirmed -= steps[0].frames
        stream.todo.extend(steps)
        self.fatal -= 1
        if not self.fatal:
            self.die()
            self.check()

    def frames_of(self, *directions: Direction) -> set[int]:
        """Returns the frames that enqueued copies will read or write."""
        steps = [step for stream in self.streams if stream.direction in directions for step in stream.todo]
        return {frame for step in steps if isinstance(step, Step) for frame in step.frames}

    def die(self) -> None:
        self.dead = True

    def gone(self) -> None:
        """Discards all enqueued work."""
        self.dead = True
        for stream in self.streams:
            stream.todo.clear()

    def advance_all(self) -> int:
        """Does all steps that can be done, and returns their number."""
        return sum(sum(1 for _ in iter(stream.advance, False)) for stream in self.streams)
