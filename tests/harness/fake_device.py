"""A device whose copies happen when a test lets them: late, bit by bit, in any order of its streams, or never."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from pagetier.kernels.device import Copy, DeviceError, Direction, event_of
from pagetier.kernels.host.copy import gather, scatter


class EngineEvent:
    """Something that an engine's own stream will come to."""

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

    def hold(self, stream: object) -> None:
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
    """What was enqueued, in order. unconfirmed: frames that were written since the last event."""

    device: FakeDevice
    direction: Direction
    todo: deque[Step | FakeEvent | EngineEvent] = field(default_factory=deque)
    unconfirmed: set[int] = field(default_factory=set)

    def after(self, event: object) -> None:
        self.device.check()
        its = event_of(event)
        if not isinstance(its, EngineEvent):
            raise ValueError("no event of this engine's")
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

    def advance(self) -> bool:
        """Does the next thing; False if there is none that could be done."""
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


class FakeDevice:
    """confirmed: frames to which a store has written all that it will, event and all.

    dead: every call raises; what was enqueued may happen all the same, until the device is `gone`.
    unable: how many of the next copies it can not address. fatal: after so many more it is dead; below 0: never.
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

    def require_event(self, event: object) -> None:
        """Of a str only a stream can tell that it is no event."""
        if not isinstance(event, (EngineEvent, str)):
            raise ValueError(f"{type(event).__name__} is no event of this engine's")

    def check(self) -> None:
        if self.dead:
            raise DeviceError("the device is dead")

    def enqueue(self, stream: FakeStream, copy: Copy) -> None:
        if self.unable:
            self.unable -= 1
            raise ValueError("the device can not address this")
        steps = [Step(copy, plane) for plane in copy.planes]
        if stream.direction is Direction.STORE and steps:
            assert not steps[0].frames & self.frames_of(*Direction), "frames that are in use are written to"
            self.confirmed -= steps[0].frames
        stream.todo.extend(steps)
        self.fatal -= 1
        if not self.fatal:
            self.die()
            self.check()

    def frames_of(self, *directions: Direction) -> set[int]:
        """Frames that are still to be read or written."""
        steps = [step for stream in self.streams if stream.direction in directions for step in stream.todo]
        return {frame for step in steps if isinstance(step, Step) for frame in step.frames}

    def die(self) -> None:
        self.dead = True

    def gone(self) -> None:
        """Nothing happens any more."""
        self.dead = True
        for stream in self.streams:
            stream.todo.clear()

    def advance_all(self) -> int:
        """Everything that can be done; how much that was."""
        return sum(sum(1 for _ in iter(stream.advance, False)) for stream in self.streams)
