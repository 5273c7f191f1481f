"""Tables of a strided cache and the pages of an arena, and the expected result of a transfer with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from copy_oracle import Array, Bytes, Row, gathered, pages_in, rows_of, scattered, with_pages
from pagetier.kernels.layout.tables import PLANE, token_rows

FRAME = 4096

# Dimensions of a cache, the innermost first: plane, block, token, head.
ORDERS = {
    "nhd": (3, 2, 1, 0),
    "hnd": (2, 3, 1, 0),
    "blocks outermost": (3, 2, 0, 1),
    "heads outermost": (2, 1, 0, 3),
    "planes innermost": (0, 3, 2, 1),
}


@dataclass
class Shape:
    """The sizes of a cache and its pages."""

    order: tuple[int, ...] = ORDERS["nhd"]
    padding: tuple[int, ...] = (0, 0, 0, 0)
    width: int = 16
    heads: int = 3
    other_heads: int = 2
    planes: int = 4
    block_tokens: int = 16
    page_tokens: int = 48
    pages: int = 3
    before: int = 0  # tokens of the first page before the table of blocks

    @property
    def head_bytes(self) -> int:
        return self.page_tokens * self.width

    @property
    def plane_bytes(self) -> int:
        return -(-self.head_bytes * (self.heads + self.other_heads) // 16) * 16

    @property
    def page_bytes(self) -> int:
        return self.plane_bytes * self.planes

    @property
    def chain(self) -> int:
        return -(-self.page_bytes // FRAME)

    @property
    def used_blocks(self) -> int:
        return -(-(self.pages * self.page_tokens) // self.block_tokens)

    def strides(self) -> tuple[list[int], int]:
        """Returns the strides of plane, block, token and head, and the bytes in total."""
        sizes = (self.planes, self.used_blocks + 2, self.block_tokens, self.heads)
        strides, at = [0] * 4, self.width
        for dimension, padding in zip(self.order, self.padding, strict=True):
            strides[dimension] = at = at + padding
            at *= sizes[dimension]
        return strides, at


@dataclass
class Tables:
    """The arrays that gather() and scatter() take, and the memory to which they refer."""

    shape: Shape
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def __post_init__(self) -> None:
        s, (strides, size) = self.shape, self.shape.strides()
        self.cache: Bytes = self.random.integers(0, 256, size, dtype=np.uint8)
        self.arena: Bytes = self.random.integers(0, 256, (s.pages * s.chain + 2) * FRAME, dtype=np.uint8)
        self.frames = self.random.permutation(s.pages * s.chain + 2)[: s.pages * s.chain].astype(np.uint32)
        self.blocks = self.random.permutation(s.used_blocks + 2)[: s.used_blocks].astype(np.int32)
        self.planes = np.array([self._plane(number, strides) for number in range(s.planes)], PLANE)
        starts = accumulate([s.page_tokens] * (s.pages - 1), initial=-s.before)
        self.pages = token_rows([*starts][: s.pages], 0, s.page_tokens)
        self.pages["first"][:1] = s.before
        self.skip = np.zeros(0, np.uint8)

    def _plane(self, number: int, strides: list[int]) -> tuple[int, ...]:
        s = self.shape
        ours = number * s.plane_bytes + (s.other_heads // 2) * s.head_bytes
        base = self.cache.ctypes.data + number * strides[0]
        return (base, *strides[1:], ours, s.head_bytes, s.heads, s.width)

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

    @property
    def _table(self) -> Array:
        return self.frames.reshape(self.shape.pages, self.shape.chain)

    def _rows(self) -> Iterator[Row]:
        planes = self.planes.copy()
        planes["base"] = planes["base"] - self.cache.ctypes.data
        return rows_of(planes, self.pages, self.blocks, self.shape.block_tokens, self.skip)
