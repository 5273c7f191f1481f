"""The copy paths between a cache on a device and frames on the host, and the choice between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from copy import copy as shallow
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from pagetier.kernels.config.copy_settings import CopySettings, PathName
from pagetier.kernels.device import Copy, Direction
from pagetier.kernels.gpu import triton_kernels
from pagetier.kernels.gpu.launch import GRID, Grid, PlaneTable, Tables, launch
from pagetier.kernels.gpu.runs import Addresses, Cutting, Runs, run_bytes, runs_of
from pagetier.kernels.gpu.staging import Ring, StagingBuffer, batches, buffer_needed
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.transfer import Transfer


class Queue(Protocol):
    """An ordered queue of a device as the copy paths need it. Not thread-safe; errors are DeviceErrors."""

    @property
    def handle(self) -> int:
        """The queue's handle in the device's library."""

    def mark(self) -> object:
        """Returns the point after everything that was enqueued so far."""

    def after(self, mark: object) -> None:
        """Orders later work behind a mark of any queue of the device."""

    def current(self) -> AbstractContextManager[object]:
        """Returns a context in which kernel launches go to this queue."""


class Moves(msgspec.Struct, frozen=True, eq=False):
    """Runs of bytes to move from `sources` to `targets`: addresses and lengths, C-contiguous arrays of one length."""

    targets: Addresses
    sources: Addresses
    nbytes: Addresses

    def parts(self, most: int) -> Iterator[Moves]:
        """Yields the moves in parts of at most `most`."""
        for first in range(0, len(self.nbytes), most):
            some = slice(first, first + most)
            yield Moves(self.targets[some], self.sources[some], self.nbytes[some])


Memcpy: TypeAlias = Callable[[Moves, Queue], None]
"""Enqueues moves, unordered among themselves. Raises DeviceError."""


class CopyPath(Protocol):
    """A path for the bytes of a copy. Belongs to one stream."""

    def enqueue(self, copy: Copy, queue: Queue) -> None:
        """Starts the copy after everything in the queue; what is enqueued later begins after the copy has ended.

        Raises:
            DeviceError: The device failed.
            ValueError: The frames do not match the copy's pages.
        """


PAIR: Final[Mapping[Direction, Any]] = {Direction.STORE: triton_kernels.gather, Direction.LOAD: triton_kernels.scatter}


class _Uploaded(msgspec.Struct, frozen=True, eq=False):
    """Tables on the device, and the transfer and frames that they describe."""

    transfer: Transfer
    frames: Frames
    tables: Tables


class Kernels(Protocol):
    """A path that can also move some pages of a copy, for a path that moves the rest otherwise."""

    def enqueue_pages(self, copy: Copy, pages: range, address: int, queue: Queue) -> None:
        """Enqueues consecutive pages of a copy, like CopyPath.enqueue, with frames that begin at another address.

        Repeated calls with the same copy are cheapest.

        Args:
            copy: The copy.
            pages: The pages; the range begins at a multiple of 16.
            address: The address of the frames.
            queue: The queue.
        """


class KernelPath:
    """Runs the kernel pair on the frames themselves, which the device can access (see Memory).

    Attributes:
        grid: The shape of the launches.
    """

    def __init__(self, grid: Grid = GRID, pair: Mapping[Direction, Any] = PAIR) -> None:
        self.grid, self._pair = grid, pair
        self._last: _Uploaded | None = None
        self._planes: PlaneTable | None = None

    def enqueue(self, copy: Copy, queue: Queue) -> None:
        """Implements CopyPath. Consecutive copies of one transfer and frames, layer by layer, share their tables."""
        self.enqueue_pages(copy, range(len(copy.transfer.slots)), copy.frames.arena.address, queue)

    def enqueue_pages(self, copy: Copy, pages: range, address: int, queue: Queue) -> None:
        """Implements Kernels."""
        with queue.current():
            tables = _some(self._tables(copy), pages, address)
            launch(self._pair[copy.direction], tables, copy.planes, self.grid)

    def _tables(self, copy: Copy) -> Tables:
        last = self._last
        if last is None or last.transfer is not copy.transfer or last.frames is not copy.frames:
            tables = Tables(copy.transfer, copy.frames, self._planes_of(copy.transfer))
            last = self._last = _Uploaded(copy.transfer, copy.frames, tables)
        return last.tables

    def _planes_of(self, transfer: Transfer) -> PlaneTable:
        """Returns the planes of a transfer: those of the last one, unless the ring or another cache came between."""
        if self._planes is None or not self._planes.fits(transfer):
            self._planes = PlaneTable(transfer)
        return self._planes


def _some(tables: Tables, pages: range, address: int) -> Tables:
    """Returns views of the same tables for some pages."""
    if len(pages) == tables.page_count and address == tables.arena.address:
        return tables
    its = shallow(tables)
    its.arena = msgspec.structs.replace(tables.arena, address=address)
    its.page_count = len(pages)
    its.pages, its.skip, its.frames = (
        table[pages.start * columns : pages.stop * columns]
        for table, columns in ((tables.pages, 3), (tables.skip, 1), (tables.frames, tables.page_frames))
    )
    return its


class DmaPath:
    """Uses the copy engines alone, one move a run."""

    def __init__(self, memcpy: Memcpy) -> None:
        self._memcpy = memcpy
        self._last: Cutting | None = None

    def enqueue(self, copy: Copy, queue: Queue) -> None:
        """Implements CopyPath. Consecutive copies of one transfer and frames share the split into runs."""
        last = self._last
        if last is None or last.transfer is not copy.transfer or last.frames is not copy.frames:
            last = self._last = Cutting(copy.transfer, copy.frames)
        _move(self._memcpy, copy.direction, last.runs(copy.planes), queue)


class StagedPath:
    """Runs a kernel between the cache and a ring on the device, and copy engines between the ring and the frames.

    The copy engines have a queue of their own, so that they work while the kernel fills or empties another buffer. A
    buffer is used again after the mark of its last use, on whichever queue that was.
    """

    def __init__(self, ring: Ring, side: Queue, kernels: Kernels, memcpy: Memcpy) -> None:
        """Takes a queue for the copy engines that nothing else uses (`side`), and the kernels for the ring."""
        self._ring, self._side, self._kernels, self._memcpy = ring, side, kernels, memcpy

    def enqueue(self, copy: Copy, queue: Queue) -> None:
        """Implements CopyPath. If not even one page of a plane fits into a buffer, the copy engines move all of it."""
        if buffer_needed(copy) > self._ring.buffer_bytes:
            _move(self._memcpy, copy.direction, runs_of(copy), queue)
            return
        step = self._store if copy.direction is Direction.STORE else self._load
        for batch in batches(copy, self._ring.buffer_bytes):
            buffers = [self._ring.next_buffer() for _ in batch.parts]
            staged, runs = batch.staged(self._ring.address), batch.runs(buffers)
            for part, (buffer, pages) in enumerate(zip(buffers, batch.parts, strict=True)):
                kernel = partial(self._kernels.enqueue_pages, staged, batch.staged_part(part), buffer.address, queue)
                step(buffer, kernel, runs.of_pages(pages), queue)
        if copy.direction is Direction.STORE:
            queue.after(self._side.mark())

    def _store(self, buffer: StagingBuffer, kernel: Callable[[], None], runs: Runs, queue: Queue) -> None:
        _after(queue, buffer.free)
        kernel()
        self._side.after(queue.mark())
        _move(self._memcpy, Direction.STORE, runs, self._side)
        buffer.free = self._side.mark()

    def _load(self, buffer: StagingBuffer, kernel: Callable[[], None], runs: Runs, queue: Queue) -> None:
        _after(self._side, buffer.free)
        _move(self._memcpy, Direction.LOAD, runs, self._side)
        queue.after(self._side.mark())
        kernel()
        buffer.free = queue.mark()


class FrameMemory(Enum):
    """How a device can access frames."""

    REACHED = "reached"  # registered with the device: its kernels access them at the host's address
    PAGEABLE = "pageable"


def chosen(copy: Copy, settings: CopySettings, memory: FrameMemory) -> PathName:
    """Returns the copy path for the transfer's run length, or the one that the settings name.

    Pageable frames never use the kernel, which cannot access them.

    All copies of a transfer take the same path, since its layers are nearly alike.
    """
    name = settings.path if settings.path != "auto" else _by_length(copy, settings)
    return "staged" if name == "kernel" and memory is FrameMemory.PAGEABLE else name


def _by_length(copy: Copy, settings: CopySettings) -> PathName:
    length = run_bytes(copy.transfer, copy.frames.arena.frame_bytes)
    limits = settings.stores if copy.direction is Direction.STORE else settings.loads
    if length < limits.kernel_below:
        return "kernel"
    return "staged" if length < limits.staged_below else "dma"


def _move(memcpy: Memcpy, direction: Direction, runs: Runs, queue: Queue) -> None:
    there, back = (runs.arena, runs.cache), (runs.cache, runs.arena)
    memcpy(Moves(*(there if direction is Direction.STORE else back), runs.nbytes), queue)


def _after(queue: Queue, mark: object) -> None:
    if mark is not None:
        queue.after(mark)
