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

from pagetier.kernels.gpu import triton_kernels
from pagetier.kernels.layout.frames import Arena, Frames
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.tables import PLANE, numbers_of
from pagetier.kernels.layout.transfer import Transfer

_MOST: Final = 1 << 31
_WIDEST: Final = 16  # bytes of an access; tables begin at multiples of it, so that alignment never causes a compilation

_NUMBERS: Final = len(PLANE.names or ())  # of a plane

_OF_TORCH: Final = {np.dtype(name): getattr(torch, name) for name in ("int64", "int32", "uint8")}

Table = npt.NDArray[Any]


class Grid(msgspec.Struct, frozen=True):
    """The shape of a launch.

    Attributes:
        programs: The largest number of programs at once. Each has a tile in flight, 16 KiB of 16-byte units, so 16
            programs have 256 KiB: twice what fills a PCIe 5 link of 16 lanes (60 GB/s for two microseconds), and the
            model keeps the other SMs.
        tile: The units of a work item, a power of two.
        warps: The warps of a program.
    """

    programs: int = 16
    tile: int = 1024
    warps: int = 8

    def to_host(self) -> Grid:
        """Returns a shape for writes over the bus: a quarter of the programs, each with twice the bytes in flight.

        On an H200, 16 programs with 16 KiB each slowed decoding by 363 % and matrix products by 76 %, 4 with 32 KiB by
        9 % and 7 %, at 51 and 50 GB/s. The cause was not measured: writes that wait for the bus may fill the queues of
        the GPU's own memory, for which the model waits.
        """
        return Grid(max(1, self.programs // 4), 2 * self.tile, self.warps)


GRID: Final = Grid()


class LaunchGroup(msgspec.Struct, frozen=True, eq=False):
    """Planes that move in units of `unit` bytes, in one launch.

    Attributes:
        unit: Bytes of a unit.
        rows: The planes' rows in the transfer's table, ascending.
        begin: The first of them in the device's table.
        units: The units of each plane a token.
    """

    unit: int
    rows: Table
    begin: int
    units: Table


class PlaneTable:
    """The planes of a cache on its device, which all copies between that cache and pages share.

    Attributes:
        groups: The planes by the widest access that they allow, widest first, which is their order on the device.
        packed: The table, a one-dimensional tensor of bytes.
        numbers: The same memory as numbers.
    """

    def __init__(self, transfer: Transfer) -> None:
        """Copies the table at once on the device's current stream, as Tables does."""
        units = _units(transfer)
        self._planes, self._block_tokens = transfer.planes, transfer.slots.block_tokens
        self.groups = _groups(transfer.planes, units)
        planes = transfer.planes[np.argsort(-units, kind="stable")]
        self._host, self.packed, (self.numbers,) = _uploaded((numbers_of(planes),), torch.device(transfer.device))

    def fits(self, transfer: Transfer) -> bool:
        """Returns whether these are the planes of a transfer."""
        return transfer.planes is self._planes and transfer.slots.block_tokens == self._block_tokens


class Tables:
    """The tables that the kernels read, on the cache's device, for any number of launches while this object lives.

    Attributes:
        groups: As in PlaneTable.
        planes, pages, blocks, skip, frames: One-dimensional tensors. `skip` has an item a page; a kernel of the caller
            may set more of them on the launch's stream but clear none, since skipped pages were not validated.
    """

    def __init__(self, transfer: Transfer, frames: Frames, planes: PlaneTable | None = None) -> None:
        """Copies the tables at once on the device's current stream, without waiting for it.

        A launch on another stream must wait for this one. The arena's address is that of the device.

        Args:
            transfer: The copy.
            frames: The frames of its pages.
            planes: The table of its planes, if another copy on the same stream has made it.

        Raises:
            ValueError: The arena is not aligned to 16 bytes, the table of frames does not have one row a page, or a row
                does not hold a page.
        """
        frames.require_room(len(transfer.slots), transfer.page_bytes)
        _require_aligned(frames.arena)
        slots = transfer.slots
        self.device = torch.device(transfer.device)
        self.arena, self.block_tokens = frames.arena, slots.block_tokens
        self.page_count, self.page_frames = frames.table.shape
        self.most_tokens = int(np.max(slots.pages["end"] - slots.pages["first"], initial=0))
        self.of_planes = planes or PlaneTable(transfer)
        self.groups, self.planes = self.of_planes.groups, self.of_planes.numbers
        self._host, self.packed, tables = _uploaded(
            (numbers_of(slots.pages), slots.blocks, _skip(slots), frames.table), self.device
        )
        self.pages, self.blocks, self.skip, self.frames = tables


def gather(tables: Tables, planes: range | None = None, grid: Grid = GRID) -> None:
    """Copies from the cache into the pages; see launch()."""
    launch(triton_kernels.gather, tables, planes, grid)


def scatter(tables: Tables, planes: range | None = None, grid: Grid = GRID) -> None:
    """Copies from the pages into the cache; see launch()."""
    launch(triton_kernels.scatter, tables, planes, grid)


def launch(kernel: Any, tables: Tables, planes: range | None = None, grid: Grid = GRID) -> None:
    """Launches one of the kernels on the device's current stream and returns before it has ended.

    Until then both memories must stay valid and the source unchanged.

    Args:
        kernel: One of the pair.
        tables: The tables of the copy.
        planes: The rows of the transfer's planes to move, see Transfer.by_layer(); all of them by default.
        grid: The shape of the launch.

    Raises:
        ValueError: There are no such rows, or the cache is in host memory (see host_copy).
    """
    if tables.device.type == "cpu" and isinstance(kernel, triton.JITFunction):
        raise ValueError("the cache is in host memory, which kernels cannot access")
    count = sum(len(group.rows) for group in tables.groups)
    wanted = range(count) if planes is None else planes
    if wanted.step != 1 or not 0 <= wanted.start <= wanted.stop <= count:
        raise ValueError(f"{wanted} is not within the {count} planes")
    with _current(tables):
        for group in tables.groups:
            _launch_group(kernel, tables, group, wanted, grid)


def _launch_group(kernel: Any, tables: Tables, group: LaunchGroup, planes: range, grid: Grid) -> None:
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
        raise ValueError(f"the arena at {arena.address:#x} with frames of {arena.frame_bytes} bytes is not aligned")
    if arena.frame_bytes >= _MOST:
        raise ValueError(
            f"frames of {arena.frame_bytes} bytes are too large: the kernels use 31 bits for offsets in a frame"
        )


def _units(transfer: Transfer) -> Table:
    """Returns for each plane the largest unit that divides its address and all strides in use."""
    steps = transfer.planes.copy()
    steps["head"][steps["heads"] == 1] = 0  # an axis of length one may have any stride
    if transfer.slots.block_tokens == 1:
        steps["token"] = 0
    steps["heads"] = _WIDEST
    units: Table = np.gcd.reduce(numbers_of(steps).reshape(-1, _NUMBERS), axis=1)
    return units


def _groups(planes: Table, units: Table) -> list[LaunchGroup]:
    groups, begin = [], 0
    for unit in sorted(set(units.tolist()), reverse=True):
        rows = np.flatnonzero(units == unit)
        groups.append(LaunchGroup(unit, rows, begin, planes["heads"][rows] * (planes["width"][rows] // unit)))
        begin += len(rows)
    return groups


def _skip(slots: SlotMap) -> Table:
    return slots.skip if len(slots.skip) else np.zeros(len(slots), np.uint8)


def _uploaded(tables: Sequence[Table], device: Any) -> tuple[Any, Any, list[Any]]:
    """Returns the tables in one host buffer, its copy on the device, and a view of each table in that copy."""
    sizes = [-(-table.nbytes // _WIDEST) * _WIDEST for table in tables]
    begins = np.cumsum([0, *sizes]).tolist()
    host = torch.empty(begins[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    memory = host.numpy()
    for table, begin in zip(tables, begins, strict=False):
        memory[begin : begin + table.nbytes] = np.ascontiguousarray(table).reshape(-1).view(np.uint8)
    packed = host.to(device, non_blocking=True)
    return host, packed, [_part(packed, table, begin) for table, begin in zip(tables, begins, strict=False)]


def _part(packed: Any, table: Table, begin: int) -> Any:
    return packed[begin : begin + table.nbytes].view(_OF_TORCH[table.dtype])


def _current(tables: Tables) -> AbstractContextManager[Any]:
    """Makes the tables' device current, and keeps the tables allocated until its stream has used them."""
    if tables.device.type != "cuda":
        return nullcontext()
    for packed in (tables.packed, tables.of_planes.packed):
        packed.record_stream(torch.cuda.current_stream(tables.device))
    context: AbstractContextManager[Any] = torch.cuda.device(tables.device)
    return context
