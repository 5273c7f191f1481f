"""Copies by way of a ring in the device's memory: cut to its slots, with the pages of each in one piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from .device import Copy
from .frames import Arena, Frames
from .runs import Runs, buffer_runs
from .transfer import Transfer

_WIDEST: Final = 16  # bytes of a kernel's access: pages in the ring begin at multiples, as in frames


class Slot:
    """`address`: where it begins. free: what a queue said when its last user was done, None before there was one."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.free: object = None


class Ring:
    """Slots of `slot_bytes` bytes that are used in turn, by one stream alone. Who uses one waits for its `free`."""

    def __init__(self, address: int, nbytes: int, slots: int = 4, owner: object = None) -> None:
        """In `nbytes` bytes from `address` on; owner keeps them. Raises ValueError if a slot has less than 16 bytes."""
        self.slot_bytes = nbytes // max(slots, 1) // _WIDEST * _WIDEST
        if slots < 1 or not self.slot_bytes or address % _WIDEST:
            raise ValueError(f"no ring: {slots} slots in {nbytes} bytes at {address:#x}")
        self._slots = [Slot(address + at * self.slot_bytes) for at in range(slots)]
        self._turns = 0
        self._owner = owner

    def turn(self) -> Slot:
        """The one that was used the longest ago."""
        self._turns += 1
        return self._slots[(self._turns - 1) % len(self._slots)]


class Part(msgspec.Struct, frozen=True, eq=False):
    """What goes through one slot: bytes of pages from byte `begin` on, `room` bytes a page; no page is skipped."""

    copy: Copy
    begin: int
    room: int

    def staged(self, address: int) -> Copy:
        """Between the cache and the pages of a slot at `address`, each in a frame of its own there."""
        copy, count = self.copy, len(self.copy.transfer.slots)
        arena = Arena(address, count * self.room, self.room)
        frames = Frames(arena, np.arange(count, dtype=np.int32)[:, None])
        moved = range(len(copy.planes))
        return msgspec.structs.replace(copy, transfer=self._shifted(), frames=frames, planes=moved)

    def runs(self, address: int) -> Runs:
        """Between the pages of a slot at `address` and the frames."""
        return buffer_runs(self.copy, address, self.room, self.begin)

    def _shifted(self) -> Transfer:
        its, which = self.copy.transfer, slice(self.copy.planes.start, self.copy.planes.stop)
        planes = its.planes[which].copy()
        planes[:, 4] -= self.begin
        return msgspec.structs.replace(its, planes=planes, layers=its.layers[which], page_bytes=self.room)


def fits(copy: Copy, slot_bytes: int) -> bool:
    """Whether every plane of a page does, alone."""
    planes = _extents(copy)
    return bool(np.all(planes[:, 1] - planes[:, 0] <= slot_bytes))


def parts(copy: Copy, slot_bytes: int) -> Iterator[Part]:
    """All that the copy moves, cut by pages, and by planes where a page is more than a slot. It has to fit."""
    slots = copy.transfer.slots
    pages = np.flatnonzero(~slots.skips & (slots.pages[:, 2] > slots.pages[:, 1]))
    extents = _extents(copy)
    for first, end in pairwise(_cuts(extents.tolist(), slot_bytes)):
        begin, behind = int(extents[first:end, 0].min()), int(extents[first:end, 1].max())
        planes = range(copy.planes.start + first, copy.planes.start + end)
        at_once = slot_bytes // (behind - begin)
        for at in range(0, len(pages), at_once):
            yield Part(_of(copy, pages[at : at + at_once], planes), begin, behind - begin)


def _extents(copy: Copy) -> npt.NDArray[np.int64]:
    """Where in a page each plane begins and ends, the next 16 bytes outside."""
    planes = copy.transfer.planes[copy.planes.start : copy.planes.stop]
    at, page_head, heads, width = planes[:, 4:].T
    end = at + (heads - 1) * page_head + copy.transfer.slots.page_tokens * width
    extents: npt.NDArray[np.int64] = np.stack([at // _WIDEST, -(-end // _WIDEST)], 1) * _WIDEST
    return extents


def _cuts(extents: Sequence[Sequence[int]], most: int) -> list[int]:
    """Between which planes to cut, so that the bytes from the first to the last of those between two cuts fit."""
    cuts, low, high = [0], 0, 0
    for at, (begin, end) in enumerate(extents):
        low, high = (min(low, begin), max(high, end)) if at > cuts[-1] else (begin, end)
        if high - low > most:
            cuts.append(at)
            low, high = begin, end
    return [*cuts, len(extents)] if extents else cuts


def _of(copy: Copy, pages: npt.NDArray[np.intp], planes: range) -> Copy:
    """Some of its pages and planes."""
    slots = copy.transfer.slots
    some = msgspec.structs.replace(slots, pages=slots.pages[pages], skip=slots.skip[:0])
    transfer = msgspec.structs.replace(copy.transfer, slots=some)
    frames = Frames(copy.frames.arena, copy.frames.table[pages])
    return msgspec.structs.replace(copy, transfer=transfer, frames=frames, planes=planes)
