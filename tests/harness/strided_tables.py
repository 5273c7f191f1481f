"""Tables of a strided cache and the pages of an arena, and a row-by-row model of a transfer with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from pagetier.kernels.layout.tables import PLANE, token_rows

FRAME = 4096
Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

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
        after = pages.copy()
        for page, at, cache, width in self._rows():
            after[page, at : at + width] = self.cache[cache : cache + width]
        return after

    def scattered(self, pages: Bytes) -> Bytes:
        """Returns the expected cache after scatter() of these pages."""
        after = self.cache.copy()
        for page, at, cache, width in self._rows():
            after[cache : cache + width] = pages[page, at : at + width]
        return after

    def _rows(self) -> list[tuple[int, int, int, int]]:
        return [
            row
            for page, (position, first, end) in enumerate(self.pages.tolist())
            if not (self.skip.size and self.skip[page])
            for plane in self.planes.tolist()
            for token in range(first, end)
            for row in self._heads(page, plane, position, token)
        ]

    def _heads(self, page: int, plane: tuple[int, ...], position: int, token: int) -> list[tuple[int, int, int, int]]:
        base, block, stride, head, at, page_head, heads, width = plane
        number, slot = divmod(position + token, self.shape.block_tokens)
        cache = base - self.cache.ctypes.data + int(self.blocks[number]) * block + slot * stride
        at += token * width
        return [(page, at + h * page_head, cache + h * head, width) for h in range(heads)]

    def framed(self) -> Bytes:
        """Returns the pages in the arena, one row per page."""
        return self.arena.reshape(-1, FRAME)[self.frames].reshape(self.shape.pages, self.shape.chain * FRAME)

    def with_pages(self, pages: Bytes) -> Bytes:
        """Returns the arena with other pages in it."""
        arena = self.arena.copy()
        arena.reshape(-1, FRAME)[self.frames] = pages.reshape(-1, FRAME)
        return arena
