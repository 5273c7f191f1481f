"""A CUDA device for asynchronous copies, based on torch: streams, events, and the copy paths over the bus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, Final, cast

import msgspec
import torch

from pagetier.kernels.config.copy_settings import CopySettings, PathName
from pagetier.kernels.device import Copy, DeviceError, Direction, Event, event_of
from pagetier.kernels.gpu.copy_paths import CopyPath, DmaPath, FrameMemory, KernelPath, Memcpy, StagedPath, chosen
from pagetier.kernels.gpu.cuda_driver import Driver
from pagetier.kernels.gpu.launch import Grid
from pagetier.kernels.gpu.memcpy import OneByOne, memcpy_of
from pagetier.kernels.gpu.staging import Ring
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.transfer import Transfer
from pagetier.shm import clock
from pagetier.shm.clock import Deadline

_SHORTEST_NAP: Final = 20e-6  # seconds between two polls of an event; each pause is 1.5 times the one before
_LONGEST_NAP: Final = 1e-3


@contextmanager
def translated() -> Iterator[None]:
    """Turns errors of CUDA, which torch and Triton raise as RuntimeError, into DeviceError."""
    try:
        yield
    except DeviceError:
        raise
    except RuntimeError as error:
        raise DeviceError(str(error)) from error


@contextmanager
def _of_torch(what: str, given: object) -> Iterator[None]:
    """Turns the errors of a torch call that was given an object of another type into ValueError."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{type(given).__name__} is not a {what}") from error


class CudaEvent:
    """Implements Event. Thread-safe, also for the engine's threads: their stream capture mode is restored."""

    def __init__(self, event: Any, driver: Driver) -> None:
        self._event, self._driver = event, driver

    def done(self) -> bool:
        """Implements Event.done()."""
        with translated(), self._driver.relaxed():
            return bool(self._event.query())

    def wait(self, seconds: float) -> bool:
        """Implements Event.wait() by polling, since CUDA's own wait has no timeout."""
        deadline, nap = Deadline(seconds), _SHORTEST_NAP
        while not self.done():
            if not (left := deadline.left):
                return False
            clock.sleep(min(nap, left))
            nap = min(1.5 * nap, _LONGEST_NAP)
        return True

    def make_stream_wait(self, stream: object) -> None:
        """Implements Event.make_stream_wait() for a torch.cuda.Stream that is not being captured: see driver.enter."""
        with translated(), _of_torch("torch.cuda.Stream", stream):
            cast("Any", stream).wait_event(self._event)


class CudaQueue:
    """A stream of the driver as the copy paths use it; implements Queue. Marks are torch events."""

    def __init__(self, handle: int, device: int) -> None:
        self._stream = torch.cuda.ExternalStream(handle, device=device)
        self.handle = handle

    def mark(self) -> Any:
        """Implements Queue.mark()."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def after(self, mark: object) -> None:
        """Implements Queue.after()."""
        self._stream.wait_event(mark)

    def current(self) -> AbstractContextManager[object]:
        """Implements Queue.current()."""
        return cast("AbstractContextManager[object]", torch.cuda.stream(self._stream))


class _Choice(msgspec.Struct, frozen=True, eq=False):
    """The copy path of a transfer, while its frames have this kind of memory."""

    transfer: Transfer
    memory: FrameMemory
    path: CopyPath


class CudaStream:
    """Implements Stream. Puts its thread into relaxed capture mode, so it must not be the engine's thread."""

    def __init__(self, direction: Direction, device: CudaDevice) -> None:
        self._device, self._driver = device, device.driver
        urgent = _URGENT[direction]
        self._queue = CudaQueue(self._driver.stream(urgent), device.index)
        # A staged copy's copy engines have a queue of their own, so that they work while its kernel does.
        self._side = CudaQueue(self._driver.stream(urgent), device.index)
        grid = Grid(programs=device.settings.programs)
        self._kernel = KernelPath(grid.to_host() if direction is Direction.STORE else grid)
        # A kernel that writes over the bus slows the model, so that it has few programs. The ring is on the GPU.
        self._ring_kernel = KernelPath(grid)
        # Batches of moves require registered memory.
        self._memcpies: Mapping[FrameMemory, Memcpy] = {
            FrameMemory.REACHED: memcpy_of(self._driver),
            FrameMemory.PAGEABLE: OneByOne(self._driver),
        }
        self._paths: dict[tuple[PathName, FrameMemory], CopyPath] = {}
        self._last: _Choice | None = None  # the layers of a transfer are enqueued one after the other

    def after(self, event: object) -> None:
        """Implements Stream.after() for a torch.cuda.Event that was recorded outside of a capture."""
        its = event_of(event)
        with translated(), _of_torch("torch.cuda.Event", its):
            self._driver.enter()
            for queue in (self._queue, self._side):
                queue.after(its)

    def enqueue(self, copy: Copy) -> None:
        """Implements Stream.enqueue(). If the frames are pageable it returns when the copy has ended."""
        if copy.transfer.device != self._device.name:
            raise ValueError(f"the cache is on {copy.transfer.device}, but the stream is on {self._device.name}")
        with translated():
            self._driver.enter()
            try:
                self._path(copy).enqueue(copy, self._queue)
            except torch.OutOfMemoryError as error:
                # There was no memory for the copy's tables: the next copy may find some. The started part ends before
                # the next event.
                self._queue.after(self._side.mark())
                raise ValueError(f"the device has no memory for the tables of a copy: {error}") from error

    def record(self) -> CudaEvent:
        """Implements Stream.record()."""
        with translated():
            self._driver.enter()
            return CudaEvent(self._queue.mark(), self._driver)

    def call_after_events(self, call: Callable[[Event], object]) -> bool:
        """Implements Stream.call_after_events(). CUDA would hold up the stream during the call."""
        return False

    def _path(self, copy: Copy) -> CopyPath:
        """Returns the copy path. A layer reuses the previous layer's unless the kind of its frames' memory changed."""
        memory, last = self._device.memory_of(copy.frames), self._last
        if last is None or last.transfer is not copy.transfer or last.memory is not memory:
            name = chosen(copy, self._device.settings, memory)
            path = self._paths[name, memory] = self._paths.get((name, memory)) or self._made(name, memory)
            last = self._last = _Choice(copy.transfer, memory, path)
        return last.path

    def _made(self, name: PathName, memory: FrameMemory) -> CopyPath:
        """Creates a copy path. Without a staging ring, copies that would use it are done by the copy engines alone."""
        if name == "kernel":
            return self._kernel
        memcpy = self._memcpies[memory]
        if name == "staged" and self._ring is not None:
            return StagedPath(self._ring, self._side, self._ring_kernel, memcpy)
        return DmaPath(memcpy)

    @cached_property
    def _ring(self) -> Ring | None:
        """The staging ring, half of the setting for each direction; None if the model has left too little memory."""
        nbytes = self._device.settings.staging // 2
        try:
            # Allocate on this stream: memory that another stream freed may still be in use there.
            with self._queue.current():
                memory = torch.empty(nbytes, dtype=torch.uint8, device=self._device.name)
        except torch.OutOfMemoryError:
            return None
        return Ring(memory.data_ptr(), nbytes, owner=memory)


_URGENT: Final = {Direction.STORE: 0, Direction.LOAD: 1_000}
"""Stream priorities: the engine waits for loads, while stores may wait for everything else."""


class CudaDevice:
    """Implements Device. Thread-safe."""

    def __init__(
        self,
        index: int,
        settings: CopySettings,
        pinned: Callable[[Frames], bool],
        driver: Driver | None = None,
    ) -> None:
        """Opens the device.

        Args:
            index: The device's index in torch.
            settings: Which copy path to use, and how much of the device.
            pinned: Returns whether all frames of these pages are registered with CUDA as a whole. It is called for each
                copy, since the answer changes while memory is being registered.
            driver: The driver of this device; by default a new one.

        Raises:
            DeviceError: There is no such device.
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
        """The torch name of the device."""
        return f"cuda:{self.index}"

    def stream(self, direction: Direction) -> CudaStream:
        """Implements Device.stream()."""
        with translated():
            return CudaStream(direction, self)

    def engine_event(self) -> object:
        """Implements Device.engine_event() with a torch.cuda.Event."""
        with translated():
            return torch.cuda.current_stream(self.index).record_event()

    def require_event(self, event: object) -> None:
        """Implements Device.require_event() for torch.cuda.Event."""
        if not isinstance(event, torch.cuda.Event):
            raise ValueError(f"{type(event).__name__} is not a torch.cuda.Event")

    def memory_of(self, frames: Frames) -> FrameMemory:
        """Returns how this device can access these frames.

        With unified addressing, registered host memory has the same address on the device. Without it the memory counts
        as unregistered, since kernels would need another address.
        """
        return FrameMemory.REACHED if self._same_addresses and self._pinned(frames) else FrameMemory.PAGEABLE


def cuda_device(name: str, settings: CopySettings, pinned: Callable[[Frames], bool]) -> CudaDevice:
    """Opens a device by its torch name, such as "cuda:0"; see CudaDevice. Raises DeviceError for any other device."""
    with translated():
        device = torch.device(name)
    if device.type != "cuda" or device.index is None:
        raise DeviceError(f"{name} is not a CUDA device with an index")
    return CudaDevice(device.index, settings, pinned)
