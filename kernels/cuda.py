"""A CUDA device for asynchronous copies, on torch: streams of our own, events, and the ways over the bus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, Final, cast

import msgspec
import torch

from .device import Copy, DeviceError, Direction, event_of
from .driver import Driver
from .frames import Frames
from .launch import Grid
from .memcpy import OneByOne, memcpy_of
from .staging import Ring
from .thresholds import CopySettings, WayName
from .transfer import Transfer
from .ways import DmaWay, KernelWay, Memcpy, Memory, StagedWay, Way, chosen

_SHORTEST_NAP: Final = 20e-6  # seconds between two looks at an event; each is half as long again
_LONGEST_NAP: Final = 1e-3


@contextmanager
def translated() -> Iterator[None]:
    """Errors of CUDA, which torch and Triton raise as RuntimeErrors, become DeviceErrors."""
    try:
        yield
    except DeviceError:
        raise
    except RuntimeError as error:
        raise DeviceError(str(error)) from error


@contextmanager
def _of_torch(what: str, given: object) -> Iterator[None]:
    """What torch finds no such thing becomes a ValueError: torch calls it, and looks at no type."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{type(given).__name__} is no {what}") from error


class CudaEvent:
    """See Event. May be used from any thread, the engine's too: none is left in another capture mode than it had."""

    def __init__(self, event: Any, driver: Driver) -> None:
        self._event, self._driver = event, driver

    def done(self) -> bool:
        """See Event."""
        with translated(), self._driver.relaxed():
            return bool(self._event.query())

    def wait(self, seconds: float) -> bool:
        """See Event. Looks again and again: CUDA's own waiting knows no deadline."""
        end, nap = time.monotonic() + seconds, _SHORTEST_NAP
        while not self.done():
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(nap, left))
            nap = min(1.5 * nap, _LONGEST_NAP)
        return True

    def hold(self, stream: object) -> None:
        """See Event. stream: a torch.cuda.Stream that is not being captured: a graph has no place for our events."""
        with translated(), _of_torch("torch.cuda.Stream", stream):
            cast("Any", stream).wait_event(self._event)


class CudaQueue:
    """A stream of the driver's as the ways use it, see ways.Queue. Marks are torch's events."""

    def __init__(self, handle: int, device: int) -> None:
        self._stream = torch.cuda.ExternalStream(handle, device=device)
        self.handle = handle

    def mark(self) -> Any:
        """See Queue."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def after(self, mark: object) -> None:
        """See Queue."""
        self._stream.wait_event(mark)

    def current(self) -> AbstractContextManager[object]:
        """See Queue."""
        return cast("AbstractContextManager[object]", torch.cuda.stream(self._stream))


class _Choice(msgspec.Struct, frozen=True, eq=False):
    """Which way a transfer goes while its frames are this to the device."""

    transfer: Transfer
    memory: Memory
    way: Way


class CudaStream:
    """See Stream. The thread that uses it is put into relaxed capture mode, see Driver.enter: so not the engine's."""

    def __init__(self, direction: Direction, device: CudaDevice) -> None:
        self._device, self._driver = device, device.driver
        urgent = _URGENT[direction]
        self._queue, self._side = (CudaQueue(self._driver.stream(urgent), device.index) for _ in range(2))
        self._kernel = KernelWay(Grid(programs=device.settings.programs))
        self._memcpies: Mapping[Memory, Memcpy] = {
            Memory.REACHED: memcpy_of(self._driver),
            Memory.PAGEABLE: OneByOne(self._driver),
        }
        self._ways: dict[tuple[WayName, Memory], Way] = {}
        self._last: _Choice | None = None

    def after(self, event: object) -> None:
        """See Stream. event: a torch.cuda.Event that was recorded outside of a capture."""
        its = event_of(event)
        with translated(), _of_torch("torch.cuda.Event", its):
            self._driver.enter()
            for queue in (self._queue, self._side):
                queue.after(its)

    def enqueue(self, copy: Copy) -> None:
        """See Stream. Returns when the copy has ended where the frames are pageable."""
        if copy.transfer.device != self._device.name:
            raise ValueError(f"a cache on {copy.transfer.device}, but the stream is one of {self._device.name}")
        with translated():
            self._driver.enter()
            try:
                self._way(copy).enqueue(copy, self._queue)
            except torch.OutOfMemoryError as error:
                # For its tables: the next copy may find room. What was begun of this one ends before the next event.
                self._queue.after(self._side.mark())
                raise ValueError(f"the device has no room for the tables of a copy: {error}") from error

    def record(self) -> CudaEvent:
        """See Stream."""
        with translated():
            self._driver.enter()
            return CudaEvent(self._queue.mark(), self._driver)

    def _way(self, copy: Copy) -> Way:
        """A layer's is that of the layer before it, if its frames are to the device what they were."""
        memory, last = self._device.memory_of(copy.frames), self._last
        if last is None or last.transfer is not copy.transfer or last.memory is not memory:
            name = chosen(copy, self._device.settings, memory)
            way = self._ways[name, memory] = self._ways.get((name, memory)) or self._made(name, memory)
            last = self._last = _Choice(copy.transfer, memory, way)
        return last.way

    def _made(self, name: WayName, memory: Memory) -> Way:
        """Without a ring all that would go through it goes by the copy engines alone."""
        if name == "kernel":
            return self._kernel
        memcpy = self._memcpies[memory]
        if name == "staged" and self._ring is not None:
            return StagedWay(self._ring, self._side, self._kernel, memcpy)
        return DmaWay(memcpy)

    @cached_property
    def _ring(self) -> Ring | None:
        """Half of the setting, as there is one each way; None if the model has left too little memory."""
        nbytes = self._device.settings.staging // 2
        try:
            # In this stream's name: what another one gives back may still be in use there.
            with self._queue.current():
                memory = torch.empty(nbytes, dtype=torch.uint8, device=self._device.name)
        except torch.OutOfMemoryError:
            return None
        return Ring(memory.data_ptr(), nbytes, owner=memory)


_URGENT: Final = {Direction.STORE: 0, Direction.LOAD: 1_000}
"""The engine waits for loads; stores wait for everybody."""


class CudaDevice:
    """See Device. May be used from any thread."""

    def __init__(
        self,
        index: int,
        settings: CopySettings,
        pinned: Callable[[Frames], bool],
        driver: Driver | None = None,
    ) -> None:
        """Raises DeviceError where there is no such device.

        Args:
            index: as torch counts.
            settings: which way to take, and how much of the device.
            pinned: whether all frames of these pages are registered with CUDA, none of them only in part. It is asked
                for each copy, as the answer may change while memory is being registered.
            driver: of this device.
        """
        self.index, self.settings, self._pinned = index, settings, pinned
        if not torch.cuda.is_available():
            raise DeviceError("torch finds no CUDA device")
        with translated():
            torch.cuda.init()
            self.driver = Driver(index) if driver is None else driver
            self._same_addresses = self.driver.same_addresses

    @property
    def name(self) -> str:
        """See Device."""
        return f"cuda:{self.index}"

    def stream(self, direction: Direction) -> CudaStream:
        """See Device."""
        with translated():
            return CudaStream(direction, self)

    def require_event(self, event: object) -> None:
        """See Device. event: a torch.cuda.Event."""
        if not isinstance(event, torch.cuda.Event):
            raise ValueError(f"{type(event).__name__} is no torch.cuda.Event")

    def memory_of(self, frames: Frames) -> Memory:
        """What these frames are to this device.

        With unified addressing registered host memory has the host's address on the device, too. Where it has not, it
        is treated as if it were not registered: kernels would have to be told another address.
        """
        return Memory.REACHED if self._same_addresses and self._pinned(frames) else Memory.PAGEABLE


def cuda_device(name: str, settings: CopySettings, pinned: Callable[[Frames], bool]) -> CudaDevice:
    """By torch's name, such as "cuda:0"; otherwise as CudaDevice. Raises DeviceError where that is no CUDA device."""
    with translated():
        device = torch.device(name)
    if device.type != "cuda" or device.index is None:
        raise DeviceError(f"{name} is no CUDA device with a number")
    return CudaDevice(device.index, settings, pinned)
