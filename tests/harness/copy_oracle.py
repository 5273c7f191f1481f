"""The bytes that a copy between a strided cache and pages must move, row by row, as its tables define them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Row = tuple[int, int, int, int]


def rows_of(planes: Array, pages: Array, blocks: Array, block_tokens: int, skip: Array) -> Iterator[Row]:
    """Yields each row's page, place in the page, place in the cache and length."""
    for page, (position, first, end) in enumerate(pages.tolist()):
        if len(skip) and skip[page]:
            continue
        for base, block, token_stride, head_stride, at, page_head, heads, width in planes.tolist():
            for token, head in product(range(first, end), range(heads)):
                number, slot = divmod(position + token, block_tokens)
                in_cache = base + int(blocks[number]) * block + slot * token_stride + head * head_stride
                yield page, at + head * page_head + token * width, in_cache, width


def gathered(rows: Iterator[Row], cache: Any, pages: Bytes) -> Bytes:
    """Returns the expected pages after a copy from the cache, one row per page."""
    after = pages.copy()
    for page, at, begin, width in rows:
        after[page, at : at + width] = cache[begin : begin + width]
    return after


def scattered(rows: Iterator[Row], cache: Bytes, pages: Bytes) -> Bytes:
    """Returns the expected cache after a copy from the pages."""
    after = cache.copy()
    scatter_rows(rows, after, pages)
    return after


def scatter_rows(rows: Iterator[Row], cache: Any, pages: Bytes) -> None:
    """Changes the cache as a copy from the pages should."""
    for page, at, begin, width in rows:
        cache[begin : begin + width] = pages[page, at : at + width]


def pages_in(arena: Bytes, table: Array, frame_bytes: int) -> Bytes:
    """Returns the pages in an arena, one row per page, for a table of frames [pages, frames]."""
    return arena.reshape(-1, frame_bytes)[table].reshape(len(table), table.shape[1] * frame_bytes)


def with_pages(arena: Bytes, table: Array, frame_bytes: int, pages: Bytes) -> Bytes:
    """Returns the arena with other pages in it."""
    arena = arena.copy()
    arena.reshape(-1, frame_bytes)[table] = pages.reshape(*table.shape, frame_bytes)
    return arena
