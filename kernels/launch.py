"""The tables of a copy on a device, and the launches of the kernel pair over them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import triton

from . import copy_kernels
from .frames import Arena, Frames
from .slots import SlotMap
from .transfer import Transfer

_MOST: Final = 1 << 31
_WIDEST: Final = 16  # bytes of an access; tables begin at multiples of it, so that no place of theirs is compiled for

Table = npt.NDArray[Any]


class Grid(msgspec.Struct, frozen=True):
    """How a launch is cut.

    programs: at most so many at once. Each has a tile in flight, 16 KiB of 16-byte units, so 16 have 256 KiB: twice
    what fills a PCIe 5 link of 16 lanes (60 GB/s for two microseconds), and the model keeps the other processors.
    tile: units of a work item, a power of two. warps: of a program.
    """

    programs: int = 16
    tile: int = 1024
    warps: int = 8


GRID: Final = Grid()


class Group(msgspec.Struct, frozen=True, eq=False):
    """Planes that move in units of `unit` bytes, one launch.

    rows: their rows in the transfer's table, ascending. begin: of the first of them in the device's table.
    units: how many each has a token.
    """

    unit: int
    rows: Table
    begin: int
    units: Table


class Tables:
    """What the kernels read, on the cache's device, there while this object lives. For any number of launches.

    groups: planes by the widest access that they allow, the widest first, in which order they are on the device.
    planes, pages, blocks, skip, frames: one-dimensional tensors. skip has an item a page; a kernel of the caller's may
    set more of them on the launch's stream, and clear none: what was skipped was not checked.
    """

    def __init__(self, transfer: Transfer, frames: Frames) -> None:
        """Copies the tables in one go, on the device's current stream, and does not wait for it.

        A launch on another stream has to wait for this one. The arena's address is the one that the device knows it by.
        Raises ValueError if the arena is not aligned to 16 bytes, or the table of frames is not one row a page or its
        rows do not hold a page.
        """
        frames.require_room(len(transfer.slots), transfer.page_bytes)
        _require_aligned(frames.arena)
        slots = transfer.slots
        self.device = torch.device(transfer.device)
        self.arena, self.block_tokens = frames.arena, slots.block_tokens
        self.page_count, self.page_frames = frames.table.shape
        self.most_tokens = int(np.max(slots.pages[:, 2] - slots.pages[:, 1], initial=0))
        units = _units(transfer)
        self.groups = _groups(transfer.planes, units)
        planes = transfer.planes[np.argsort(-units, kind="stable")]
        self._host, self.packed, tables = _uploaded(
            (planes, slots.pages, slots.blocks, _skip(slots), frames.table), self.device
        )
        self.planes, self.pages, self.blocks, self.skip, self.frames = tables


def gather(tables: Tables, planes: range | None = None, grid: Grid = GRID) -> None:
    """Copies from the cache into the pages, as launch() does."""
    launch(copy_kernels.gather, tables, planes, grid)


def scatter(tables: Tables, planes: range | None = None, grid: Grid = GRID) -> None:
    """Copies from the pages into the cache, as launch() does."""
    launch(copy_kernels.scatter, tables, planes, grid)


def launch(kernel: Any, tables: Tables, planes: range | None = None, grid: Grid = GRID) -> None:
    """Runs one of the pair on the device's current stream and returns before it is done.

    planes: which rows of the transfer's planes to move, see Transfer.planes_of; None: all of them. Until the stream is
    done the cache and the arena stay, and what is moved is not written to. Raises ValueError if there are no such rows,
    and for a cache in host memory: see host_copy.
    """
    if tables.device.type == "cpu" and isinstance(kernel, triton.JITFunction):
        raise ValueError("the cache is in host memory, where no kernel runs")
    count = sum(len(group.rows) for group in tables.groups)
    wanted = range(count) if planes is None else planes
    if wanted.step != 1 or not 0 <= wanted.start <= wanted.stop <= count:
        raise ValueError(f"{wanted} of {count} planes")
    with _current(tables):
        for group in tables.groups:
            _launch_group(kernel, tables, group, wanted, grid)


def _launch_group(kernel: Any, tables: Tables, group: Group, planes: range, grid: Grid) -> None:
    first, end = np.searchsorted(group.rows, [planes.start, planes.stop]).tolist()
    units = int(np.max(group.units[first:end], initial=0)) * tables.most_tokens
    tiles = -(-units // grid.tile)
    items = tables.page_count * (end - first) * tiles
    if not items:
        return
    kernel[(min(grid.programs, items),)](
        *(tables.planes, tables.pages, tables.blocks, tables.skip, tables.frames),
        *(tables.arena.address, tables.arena.frame_bytes, tables.page_frames, tables.block_tokens),
        *(group.begin + first, end - first, tiles, items),
        UNIT=group.unit,
        TILE=grid.tile,
        num_warps=grid.warps,
        num_stages=1,
    )


def _require_aligned(arena: Arena) -> None:
    if arena.address % _WIDEST or arena.frame_bytes % _WIDEST:
        raise ValueError(f"an arena at {arena.address:#x} with frames of {arena.frame_bytes} bytes is not aligned")
    if arena.frame_bytes >= _MOST:
        raise ValueError(f"frames of {arena.frame_bytes} bytes: the kernels count the bytes of a frame in 31 bits")


def _units(transfer: Transfer) -> Table:
    """Of each plane the largest unit that divides its address and all strides that are taken."""
    steps = transfer.planes.copy()
    steps[steps[:, 6] == 1, 3] = 0  # an axis of one may have any stride
    if transfer.slots.block_tokens == 1:
        steps[:, 2] = 0
    steps[:, 6] = _WIDEST
    units: Table = np.gcd.reduce(steps, axis=1)
    return units


def _groups(planes: Table, units: Table) -> list[Group]:
    groups, begin = [], 0
    for unit in np.unique(units)[::-1].tolist():
        rows = np.flatnonzero(units == unit)
        groups.append(Group(unit, rows, begin, planes[rows, 6] * (planes[rows, 7] // unit)))
        begin += len(rows)
    return groups


def _skip(slots: SlotMap) -> Table:
    return slots.skip if len(slots.skip) else np.zeros(len(slots), np.uint8)


def _uploaded(tables: Sequence[Table], device: Any) -> tuple[Any, Any, list[Any]]:
    """The tables one behind the other on the host, the same on the device, and there each by itself."""
    sizes = [-(-table.nbytes // _WIDEST) * _WIDEST for table in tables]
    begins = np.cumsum([0, *sizes]).tolist()
    host = torch.empty(begins[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    for table, begin in zip(tables, begins, strict=False):
        host.numpy()[begin : begin + table.nbytes] = np.ascontiguousarray(table).reshape(-1).view(np.uint8)
    packed = host.to(device, non_blocking=True)
    return host, packed, [_part(packed, table, begin) for table, begin in zip(tables, begins, strict=False)]


def _part(packed: Any, table: Table, begin: int) -> Any:
    return packed[begin : begin + table.nbytes].view(getattr(torch, table.dtype.name))


def _current(tables: Tables) -> AbstractContextManager[Any]:
    """Makes their device the current one, and keeps the tables in its memory until its stream is done with them."""
    if tables.device.type != "cuda":
        return nullcontext()
    tables.packed.record_stream(torch.cuda.current_stream(tables.device))
    context: AbstractContextManager[Any] = torch.cuda.device(tables.device)
    return context
