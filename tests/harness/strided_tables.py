"""Tables of a strided cache and the pages of an arena, and the expected result of a transfer with them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from copy_cases import FRAME_BYTES, Rank, Stored, case_of
from copy_oracle import Array, Bytes, Row, gathered, pages_in, rows_of, scattered, with_pages
from pagetier.kernels.layout.slot_map import slot_map

FRAME = FRAME_BYTES
ORDERS = {
    "nhd": ("layer", "kind", "block", "token", "head"),
    "hnd": ("layer", "kind", "block", "head", "token"),
    "blocks outermost": ("block", "layer", "kind", "token", "head"),
    "heads outermost": ("head", "layer", "kind", "block", "token"),
    "planes innermost": ("block", "token", "head", "layer", "kind"),
}


class Shape(msgspec.Struct):
    """The sizes of a cache and its pages; `before` counts tokens of the first page before the table of blocks."""

    order: tuple[str, ...] = ORDERS["nhd"]
    width: int = 16
    heads: int = 3
    other_heads: int = 2
    planes: int = 4
    block_tokens: int = 16
    page_tokens: int = 48
    pages: int = 3
    before: int = 0


class Tables:
    """The arrays that gather() and scatter() take, and the memory to which they refer."""

    def __init__(self, shape: Shape, random: np.random.Generator | None = None) -> None:
        s, random = shape, random or np.random.default_rng(1)
        used = -(-(s.pages * s.page_tokens) // s.block_tokens)
        blocks, copied = random.permutation(used + 2)[:used], range(s.pages * s.page_tokens - s.before)
        slots = slot_map(blocks, s.pages, s.page_tokens, s.block_tokens, -s.before, copied)
        rank = Rank(s.other_heads // 2, s.other_heads - s.other_heads // 2)
        case = case_of([Stored(s.order, s.planes, 1, s.heads, s.width)], slots, random, rank)
        self.shape, self.page_bytes = shape, case.transfer.page_bytes
        self.cache: Bytes = random.integers(0, 256, case.cache_bytes, np.uint8)
        self.arena: Bytes = random.integers(0, 256, case.frames.arena.nbytes, np.uint8)
        self._table = case.frames.table.astype(np.uint32)
        self.frames: Array = self._table.reshape(-1)
        self.planes: Array = case.transfer.planes.copy()
        self.pages: Array = slots.pages.copy()
        self.blocks, self.skip = slots.blocks.copy(), slots.skip.copy()
        self.planes["base"] += self.cache.ctypes.data

    def shared(self, threads: int) -> tuple[Array, Array, Array, int, Array, int]:
        """Returns the arguments that a session's calls share with those for plain memory."""
        return self.planes, self.pages, self.blocks, self.shape.block_tokens, self.skip, threads

    def plain(self, threads: int) -> tuple[int, int, int, Array, Array, Array, Array, int, Array, int]:
        """Returns all arguments for plain memory."""
        return self.arena.ctypes.data, self.arena.nbytes, FRAME, self.frames, *self.shared(threads)

    def gathered(self, pages: Bytes) -> Bytes:
        """Returns the expected pages after gather(), one row per page."""
        return gathered(self._rows(), self.cache, pages)

    def scattered(self, pages: Bytes) -> Bytes:
        """Returns the expected cache after scatter() of these pages."""
        return scattered(self._rows(), self.cache, pages)

    def framed(self) -> Bytes:
        """Returns the pages in the arena, one row per page."""
        return pages_in(self.arena, self._table, FRAME)

    def with_pages(self, pages: Bytes) -> Bytes:
        """Returns the arena with other pages in it."""
        return with_pages(self.arena, self._table, FRAME, pages)

    def _rows(self) -> Iterator[Row]:
        planes = self.planes.copy()
        planes["base"] -= self.cache.ctypes.data
        return rows_of(planes, self.pages, self.blocks, self.shape.block_tokens, self.skip)
