"""The ways of a copy between a cache on a device and frames on the host, behind one interface, and which to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import copy as shallow
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from . import copy_kernels
from .device import Copy, Direction
from .frames import Frames
from .launch import GRID, Grid, Tables, launch
from .runs import Addresses, Cutting, Runs, run_bytes, runs_of
from .staging import Ring, Slot, batches, slot_needed
from .thresholds import CopySettings, WayName
from .transfer import Transfer


class Queue(Protocol):
    """Work of a device in order, as the ways need it. For one thread at a time; errors are DeviceErrors."""

    @property
    def handle(self) -> int:
        """What the device's library calls it."""

    def mark(self) -> object:
        """The point after all that was enqueued so far."""

    def after(self, mark: object) -> None:
        """What is enqueued from now on begins after a mark of any queue of the device."""

    def current(self) -> AbstractContextManager[object]:
        """Launches of kernels inside of it go to this queue."""


class Moves(msgspec.Struct, frozen=True, eq=False):
    """Runs of bytes that go from `sources` to `targets`: addresses and lengths, C-contiguous arrays of one length."""

    targets: Addresses
    sources: Addresses
    nbytes: Addresses


Memcpy: TypeAlias = Callable[[Moves, Queue], None]
"""Enqueues moves, in no order among themselves. Raises DeviceError."""


class Way(Protocol):
    """How the bytes of a copy go. Belongs to one stream."""

    def enqueue(self, copy: Copy, queue: Queue) -> None:
        """Begins the copy behind all that is in the queue; what is enqueued there later begins after it has ended.

        Raises DeviceError, and ValueError for frames that are not those of the copy's pages.
        """


PAIR: Final[Mapping[Direction, Any]] = {Direction.STORE: copy_kernels.gather, Direction.LOAD: copy_kernels.scatter}


class _Uploaded(msgspec.Struct, frozen=True, eq=False):
    """Tables, and of what."""

    transfer: Transfer
    frames: Frames
    tables: Tables


class Kernels(Protocol):
    """A way that moves some pages of a copy, too, for one that does the rest by other means."""

    def enqueue_pages(self, copy: Copy, pages: range, address: int, queue: Queue) -> None:
        """As Way.enqueue, some pages that follow each other, with frames that begin at another address.

        It costs least to give the same copy again and again. pages: begins at a multiple of 16.
        """


class KernelWay:
    """The kernel pair on the frames themselves: the device reaches them, see Memory."""

    def __init__(self, grid: Grid = GRID, pair: Mapping[Direction, Any] = PAIR) -> None:
        self._grid, self._pair = grid, pair
        self._last: _Uploaded | None = None

    def enqueue(self, copy: Copy, queue: Queue) -> None:
        """See Way. Copies of one transfer and frames that follow each other, layer by layer, share their tables."""
        self.enqueue_pages(copy, range(len(copy.transfer.slots)), copy.frames.arena.address, queue)

    def enqueue_pages(self, copy: Copy, pages: range, address: int, queue: Queue) -> None:
        """See Kernels."""
        with queue.current():
            tables = _some(self._tables(copy), pages, address)
            launch(self._pair[copy.direction], tables, copy.planes, self._grid)

    def _tables(self, copy: Copy) -> Tables:
        last = self._last
        if last is None or last.transfer is not copy.transfer or last.frames is not copy.frames:
            last = _Uploaded(copy.transfer, copy.frames, Tables(copy.transfer, copy.frames))
            self._last = last
        return last.tables


def _some(tables: Tables, pages: range, address: int) -> Tables:
    """Of some pages: views of the same tables."""
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


class DmaWay:
    """The copy engines alone: one move for each run."""

    def __init__(self, memcpy: Memcpy) -> None:
        self._memcpy = memcpy
        self._last: Cutting | None = None

    def enqueue(self, copy: Copy, queue: Queue) -> None:
        """See Way. Copies of one transfer and frames that follow each other share what is worked out."""
        last = self._last
        if last is None or last.transfer is not copy.transfer or last.frames is not copy.frames:
            last = self._last = Cutting(copy.transfer, copy.frames)
        _move(self._memcpy, copy.direction, last.runs(copy.planes), queue)


class StagedWay:
    """A kernel between the cache and a ring on the device, and copy engines between the ring and the frames.

    The engines have a queue of their own beside the copy's, so that they work while the kernel fills or empties
    another slot. A slot is used again after the mark of its last use, on whichever queue that was.
    """

    def __init__(self, ring: Ring, side: Queue, kernels: Kernels, memcpy: Memcpy) -> None:
        """side: for the engines, used by nobody else. kernels: for the ring."""
        self._ring, self._side, self._kernels, self._memcpy = ring, side, kernels, memcpy

    def enqueue(self, copy: Copy, queue: Queue) -> None:
        """See Way. A plane of which not even one page fits into a slot has the whole copy go by the engines alone."""
        if slot_needed(copy) > self._ring.slot_bytes:
            _move(self._memcpy, copy.direction, runs_of(copy), queue)
            return
        step = self._store if copy.direction is Direction.STORE else self._load
        for batch in batches(copy, self._ring.slot_bytes):
            slots = [self._ring.turn() for _ in batch.parts]
            staged, runs = batch.staged(self._ring.address), batch.runs(slots)
            for part, (slot, pages) in enumerate(zip(slots, batch.parts, strict=True)):
                kernel = partial(self._kernels.enqueue_pages, staged, batch.staged_part(part), slot.address, queue)
                step(slot, kernel, runs.of_pages(pages), queue)
        if copy.direction is Direction.STORE:
            queue.after(self._side.mark())

    def _store(self, slot: Slot, kernel: Callable[[], None], runs: Runs, queue: Queue) -> None:
        _after(queue, slot.free)
        kernel()
        self._side.after(queue.mark())
        _move(self._memcpy, Direction.STORE, runs, self._side)
        slot.free = self._side.mark()

    def _load(self, slot: Slot, kernel: Callable[[], None], runs: Runs, queue: Queue) -> None:
        _after(self._side, slot.free)
        _move(self._memcpy, Direction.LOAD, runs, self._side)
        queue.after(self._side.mark())
        kernel()
        slot.free = queue.mark()


class Memory(Enum):
    """What frames are to a device."""

    REACHED = "reached"  # registered with it: its kernels have them at the address that the host has
    PAGEABLE = "pageable"


def chosen(copy: Copy, settings: CopySettings, memory: Memory) -> WayName:
    """By the length of the transfer's runs, unless the settings name a way; a kernel reaches no pageable frames.

    All copies of a transfer go the same way: those of its layers are as good as alike.
    """
    name = settings.way if settings.way != "auto" else _by_length(copy, settings)
    return "staged" if name == "kernel" and memory is Memory.PAGEABLE else name


def _by_length(copy: Copy, settings: CopySettings) -> WayName:
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
