"""What copies between an engine's torch cache and pages must move: the oracle, over the strides of torch's planes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from copy_oracle import Array, Bytes, gathered, pages_in, rows_of, scatter_rows, with_pages
from engine_caches import EngineCache
from pagetier.kernels.layout.frames import Arena, Frames, frames_of
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.tables import PLANE

GUARD = 4096


class ByAddress:
    """The memory of this process; its slices are bytes by their address."""

    def __getitem__(self, part: slice) -> Bytes:
        return np.ctypeslib.as_array((ctypes.c_uint8 * (part.stop - part.start)).from_address(part.start))

    def __setitem__(self, part: slice, content: Bytes) -> None:
        self[part][:] = content


class Pages:
    """Memory for the pages of a copy, with frames at random places, between guard zones."""

    def __init__(self, count: int, page_bytes: int, frame_bytes: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        each = -(-page_bytes // frame_bytes)
        frames = count * each + 3
        self.memory: Bytes = rng.integers(0, 256, GUARD + frames * frame_bytes + GUARD, np.uint8)
        self.arena = Arena(self.memory.ctypes.data + GUARD, frames * frame_bytes, frame_bytes, self.memory)
        self.table: Array = rng.permutation(frames)[: count * each].reshape(count, each)

    @property
    def frames(self) -> Frames:
        """Returns the frames of the copy."""
        return frames_of(self.arena, self.table)

    def of_each(self) -> Bytes:
        """Returns a copy of the bytes of each page."""
        return pages_in(self.memory[GUARD:-GUARD], self.table, self.arena.frame_bytes)

    def containing(self, pages: Bytes) -> Bytes:
        """Returns the memory with other pages in it."""
        inside = with_pages(self.memory[GUARD:-GUARD], self.table, self.arena.frame_bytes, pages)
        return np.concatenate([self.memory[:GUARD], inside, self.memory[-GUARD:]])


def stored(slots: SlotMap, cache: EngineCache, page_layout: PageLayout, pages: Pages) -> Bytes:
    """Returns the expected memory of the pages after a store."""
    return pages.containing(gathered(_rows(slots, cache, page_layout), ByAddress(), pages.of_each()))


def load_plainly(slots: SlotMap, cache: EngineCache, page_layout: PageLayout, pages: Pages) -> None:
    """Changes the cache as a load should."""
    scatter_rows(_rows(slots, cache, page_layout), ByAddress(), pages.of_each())


def _rows(slots: SlotMap, cache: EngineCache, page_layout: PageLayout) -> Any:
    planes = []
    for layer, offsets in zip(cache.planes, page_layout.offsets, strict=True):
        for plane, at in zip(layer, offsets, strict=True):
            size, width = plane.dtype.itemsize, plane.shape[3] * plane.dtype.itemsize
            strides = (step * size for step in plane.stride()[:3])
            assert plane.stride(3) == 1 or plane.shape[3] == 1
            planes.append((plane.data_ptr(), *strides, at, page_layout.tokens * width, plane.shape[2], width))
    return rows_of(np.array(planes, PLANE), slots.pages, slots.blocks, slots.block_tokens, slots.skip)
