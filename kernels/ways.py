"""The ways of a copy between a cache on a device and frames on the host, behind one interface, and which to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from . import copy_kernels
from .device import Copy, Direction
from .frames import Frames
from .launch import GRID, Grid, Tables, launch
from .runs import Addresses, Runs, run_bytes, runs_of
from .staging import Ring, fits, parts
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


class KernelWay:
    """The kernel pair on the frames themselves: the device reaches them, see Memory."""

    def __init__(self, grid: Grid = GRID, pair: Mapping[Direction, Any] = PAIR) -> None:
        self._grid, self._pair = grid, pair
        self._last: _Uploaded | None = None

    def enqueue(self, copy: Copy, queue: Queue) -> None:
        """See Way. Copies of one transfer and frames that follow each other, layer by layer, share their tables."""
        with queue.current():
            launch(self._pair[copy.direction], self._tables(copy), copy.planes, self._grid)

    def _tables(self, copy: Copy) -> Tables:
        last = self._last
        if last is None or last.transfer is not copy.transfer or last.frames is not copy.frames:
            last = _Uploaded(copy.transfer, copy.frames, Tables(copy.transfer, copy.frames))
            self._last = last
        return last.tables


class DmaWay:
    """The copy engines alone: one move for each run."""

    def __init__(self, memcpy: Memcpy) -> None:
        self._memcpy = memcpy

    def enqueue(self, copy: Copy, queue: Queue) -> None:
        """See Way."""
        _move(self._memcpy, copy.direction, runs_of(copy), queue)


class StagedWay:
    """A kernel between the cache and a ring on the device, and copy engines between the ring and the frames.

    The engines have a queue of their own beside the copy's, so that they work while the kernel fills or empties
    another slot. A slot is used again after the mark of its last use, on whichever queue that was.
    """

    def __init__(self, ring: Ring, side: Queue, kernel: Way, memcpy: Memcpy) -> None:
        """side: for the engines, used by nobody else. kernel: for the ring."""
        self._ring, self._side, self._kernel, self._memcpy = ring, side, kernel, memcpy

    def enqueue(self, copy: Copy, queue: Queue) -> None:
        """See Way. A plane of which not even one page fits into a slot has the whole copy go by the engines alone."""
        if not fits(copy, self._ring.slot_bytes):
            _move(self._memcpy, copy.direction, runs_of(copy), queue)
        elif copy.direction is Direction.STORE:
            self._store(copy, queue)
        else:
            self._load(copy, queue)

    def _store(self, copy: Copy, queue: Queue) -> None:
        for part in parts(copy, self._ring.slot_bytes):
            slot = self._ring.turn()
            _after(queue, slot.free)
            self._kernel.enqueue(part.staged(slot.address), queue)
            self._side.after(queue.mark())
            _move(self._memcpy, copy.direction, part.runs(slot.address), self._side)
            slot.free = self._side.mark()
        queue.after(self._side.mark())

    def _load(self, copy: Copy, queue: Queue) -> None:
        for part in parts(copy, self._ring.slot_bytes):
            slot = self._ring.turn()
            _after(self._side, slot.free)
            _move(self._memcpy, copy.direction, part.runs(slot.address), self._side)
            queue.after(self._side.mark())
            self._kernel.enqueue(part.staged(slot.address), queue)
            slot.free = queue.mark()


class Memory(Enum):
    """What frames are to a device."""

    REACHED = "reached"  # registered with it: its kernels have them at the address that the host has
    PAGEABLE = "pageable"


def chosen(copy: Copy, settings: CopySettings, memory: Memory) -> WayName:
    """By the length of the copy's runs, unless the settings name a way; a kernel reaches no pageable frames."""
    name = settings.way if settings.way != "auto" else _by_length(copy, settings)
    return "staged" if name == "kernel" and memory is Memory.PAGEABLE else name


def _by_length(copy: Copy, settings: CopySettings) -> WayName:
    length = run_bytes(copy)
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
