"""Host memory with random bytes for a case of copy_cases, and the result of the host path for it."""

from __future__ import annotations

import ctypes
from typing import Any

import msgspec
import numpy as np

from copy_cases import FRAME_BYTES, Case
from pagetier.kernels.device import Copy, Direction
from pagetier.kernels.host import copy as host_copy
from pagetier.kernels.layout.frames import Arena, Frames
from pagetier.kernels.layout.transfer import Transfer

_ALIGNMENT = 4096


def aligned(nbytes: int, seed: int = 0) -> Any:
    """Returns random bytes whose address is a multiple of 4 KiB."""
    memory = np.random.default_rng(seed).integers(0, 256, nbytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + nbytes]


def moved_bytes(target: int, source: int, nbytes: int) -> None:
    """Copies one run, as a copy engine does."""
    ctypes.memmove(int(target), int(source), int(nbytes))


class PlacedCopy(Copy, frozen=True, eq=False):
    """A copy that keeps its memory as long as it exists."""

    placed: Placed


class Placed:
    """The cache and the arena of a case. expect() may be called after copies by another path."""

    def __init__(self, case: Case, device: str = "cpu") -> None:
        self.cache, self.arena = aligned(case.cache_bytes, 1), aligned(case.frames.arena.nbytes, 2)
        planes = case.transfer.planes.copy()
        planes["base"] = planes["base"] + self.cache.ctypes.data
        self.transfer = msgspec.structs.replace(case.transfer, planes=planes, device=device)
        self.frames = Frames(Arena(self.arena.ctypes.data, len(self.arena), FRAME_BYTES), case.frames.table)
        self.planes = case.planes

    def copy(self, direction: Direction) -> Copy:
        """Returns the case's copy in this direction."""
        return PlacedCopy(direction, self.transfer, self.frames, self.planes, self)

    def contents(self) -> tuple[Any, Any]:
        """Returns copies of cache and arena."""
        return self.cache.copy(), self.arena.copy()

    def after(self, copy: Copy) -> tuple[Any, Any]:
        """Returns cache and arena as the host path would leave them, without changing them."""
        before = self.contents()
        host_copied(copy)
        then = self.contents()
        self.cache[:], self.arena[:] = before
        return then

    def expect(self, wanted: tuple[Any, Any]) -> None:
        """Compares all bytes of cache and arena with the expected ones."""
        np.testing.assert_array_equal(self.cache, wanted[0])
        np.testing.assert_array_equal(self.arena, wanted[1])


def host_copied(copy: Copy) -> None:
    """Makes a copy by the host path, ignoring its device."""
    path = host_copy.gather if copy.direction is Direction.STORE else host_copy.scatter
    path(_of_planes(copy), copy.frames)


def host_copied_pages(copy: Copy, pages: range, address: int) -> None:
    """Copies only these pages by the host path, with frames that begin at another address."""
    slots = copy.transfer.slots.some(pages.start, pages.stop)
    arena = msgspec.structs.replace(copy.frames.arena, address=address)
    frames = Frames(arena, copy.frames.table[pages.start : pages.stop])
    host_copied(Copy(copy.direction, msgspec.structs.replace(copy.transfer, slots=slots), frames, copy.planes))


def _of_planes(copy: Copy) -> Transfer:
    its, which = copy.transfer, slice(copy.planes.start, copy.planes.stop)
    return msgspec.structs.replace(its, planes=its.planes[which], layers=its.layers[which], device="cpu")
