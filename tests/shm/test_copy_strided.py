"""Copies of tokens between a strided cache and frames in plain memory, compared byte by byte with the tables.

stress/strided.c does this with random tables.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from child_process import in_child
from pagetier.shm._core import gather, scatter
from seeded_random import chance
from strided_tables import FRAME, ORDERS, Shape, Tables

I64 = np.iinfo(np.int64)


def gathered(tables: Tables, threads: int = 1) -> None:
    """Gathers, and compares all memory with the expected content."""
    arena, cache = tables.with_pages(tables.gathered(tables.framed())), tables.cache.copy()
    gather(*tables.plain(threads))
    assert np.array_equal(tables.arena, arena)
    assert np.array_equal(tables.cache, cache)


def scattered(tables: Tables, threads: int = 1) -> None:
    arena, cache = tables.arena.copy(), tables.scattered(tables.framed())
    scatter(*tables.plain(threads))
    assert np.array_equal(tables.arena, arena)
    assert np.array_equal(tables.cache, cache)


@pytest.mark.parametrize("order", ORDERS)
def test_large_pages_are_copied_by_threads(order: str) -> None:
    tables = Tables(Shape(ORDERS[order], width=1152, heads=8, planes=8, page_tokens=64, before=3), chance())
    gathered(tables, 4)
    tables.cache[:] = 0
    scattered(tables, 1000)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_page_of_one_plane_is_copied_by_threads(threads: int) -> None:
    """A plane is divided by its tokens if there are few planes."""
    for shape in (
        Shape(width=4096, heads=1, other_heads=0, planes=1, page_tokens=2053, pages=1),
        Shape(width=1 << 20, heads=1, other_heads=0, planes=1, block_tokens=1, page_tokens=1, pages=9),
    ):
        tables = Tables(shape, chance())
        gathered(tables, threads)
        tables.cache[:] = 0
        scattered(tables, threads)


def test_empty_tables_copy_nothing() -> None:
    for shape in (Shape(pages=0), Shape(planes=0)):
        tables = Tables(shape)
        gathered(tables)
        scattered(tables)
    tables = Tables(Shape())
    tables.pages["end"] = tables.pages["first"]
    tables.pages["position"] = -1000
    tables.blocks[:] = -1
    gathered(tables)


def test_planes_of_which_nothing_is_copied_do_no_harm() -> None:
    """The bytes of all heads of a token are 2**64, in 64 bits none, by which the tokens of a piece were derived."""
    tables = Tables(Shape(width=4, heads=1, other_heads=0, planes=2))
    tables.pages["end"] = tables.pages["first"]
    tables.planes["heads"], tables.planes["head"], tables.planes["page_head"] = 2**62, 0, 0
    tables.planes["token"] = 1024
    assert in_child(lambda: gather(*tables.plain(1))) == 0


def test_rows_of_skipped_pages_are_not_validated() -> None:
    tables = Tables(Shape())
    tables.skip = np.array([0, 1, 0], np.uint8)
    tables.pages["position"][1] = 10**6
    tables.frames.reshape(3, -1)[1] = 0
    gather(*tables.plain(1))
    tables.frames.reshape(3, -1)[1] = 2**32 - 1
    tables.blocks[4] = -1
    scatter(*tables.plain(1))


def put(table: str, where: int | tuple[int, str], value: int) -> Callable[[Tables], None]:
    def spoil(tables: Tables) -> None:
        rows = getattr(tables, table)
        if isinstance(where, tuple):
            row, field = where
            rows[field][row] = value
        else:
            rows[where] = value

    return spoil


WRONG: list[tuple[str, Callable[[Tables], None]]] = [
    (r"planes\[1\]: heads and width are at least 1", put("planes", (1, "heads"), 0)),
    (r"planes\[1\]: heads and width are at least 1", put("planes", (1, "width"), -1)),
    (r"planes\[3\]: at and page_head are not negative", put("planes", (3, "at"), -16)),
    (r"planes\[3\]: at and page_head are not negative", put("planes", (3, "page_head"), -16)),
    (r"planes\[2\]: its heads overlap", put("planes", (2, "page_head"), 48 * 16 - 1)),
    (r"planes\[0\]: reaches beyond the page", put("planes", (0, "at"), 4 * FRAME - 3 * 48 * 16 + 1)),
    (r"planes\[0\]: reaches beyond the page", put("planes", (0, "heads"), 22)),
    (r"planes\[0\]: its bytes in the page exceed 64 bits", put("planes", (0, "width"), I64.max // 40)),
    (r"planes\[0\]: its bytes in the page exceed 64 bits", put("planes", (0, "heads"), I64.max)),
    (r"planes\[0\]: its bytes in the page exceed 64 bits", put("planes", (0, "at"), I64.max)),
    (r"planes\[0\]: its addresses in the cache exceed 64 bits", put("planes", (0, "base"), I64.max)),
    (r"planes\[0\]: its addresses in the cache exceed 64 bits", put("planes", (0, "block"), I64.max // 2)),
    (r"planes\[0\]: its addresses in the cache exceed 64 bits", put("planes", (0, "token"), I64.min)),
    (r"planes\[0\]: its addresses in the cache exceed 64 bits", put("planes", (0, "head"), I64.max // 2)),
    (r"planes\[0\]: its addresses in the cache are invalid", put("planes", (0, "base"), 0)),
    (r"planes\[0\]: its addresses in the cache are invalid", put("planes", (0, "head"), -(1 << 60))),
    (r"pages\[2\]: the first token is negative", put("pages", (2, "first"), -1)),
    (r"pages\[2\]: ends before its first token", put("pages", (2, "end"), -1)),
    (r"pages\[0\]: begins before the table of blocks", put("pages", (0, "position"), -1)),
    (r"pages\[2\]: ends behind the table of blocks", put("pages", (2, "position"), 97)),
    (r"pages\[2\]: ends behind the table of blocks", put("pages", (2, "end"), 49)),
    (r"pages\[1\]: a position beyond 64 bits", put("pages", (1, "position"), I64.max)),
    (r"pages\[1\]: uses a block with a negative number", put("blocks", 5, -1)),
    (r"pages\[1\]: a frame lies outside the arena", put("frames", 7, 15)),
    (r"skip: 2 flags for 3 pages", lambda tables: setattr(tables, "skip", bytes(2))),
    (r"frames: not as many for each page", lambda tables: setattr(tables, "frames", bytes(40))),
    (r"frames: 3 bytes are no whole number", lambda tables: setattr(tables, "frames", bytes(3))),
    (r"planes: 65 bytes are no whole number of 64-byte elements", lambda tables: setattr(tables, "planes", bytes(65))),
    (r"pages: 25 bytes are no whole number of 24-byte elements", lambda tables: setattr(tables, "pages", bytes(25))),
    (r"blocks: 2 bytes are no whole number", lambda tables: setattr(tables, "blocks", bytes(2))),
    (r"block_tokens: at least 1", lambda tables: setattr(tables.shape, "block_tokens", 0)),
    (r"block_tokens: at least 1", lambda tables: setattr(tables.shape, "block_tokens", -16)),
]


@pytest.mark.parametrize(("why", "spoil"), WRONG)
@pytest.mark.parametrize("transfer", [gather, scatter])
def test_invalid_tables_are_rejected(transfer: Callable[..., None], why: str, spoil: Callable[[Tables], None]) -> None:
    """The copy is rejected before any byte is copied."""
    tables = Tables(Shape())
    spoil(tables)
    arena, cache = tables.arena.copy(), tables.cache.copy()
    with pytest.raises(ValueError, match=f"^{why}"):
        transfer(*tables.plain(1))
    assert np.array_equal(tables.arena, arena)
    assert np.array_equal(tables.cache, cache)


@pytest.mark.parametrize(
    ("address", "size", "frame", "why"),
    [
        (0, 15 * FRAME, FRAME, "arena: not a valid range of memory"),
        (4096, -1, FRAME, "arena: not a valid range of memory"),
        (4096, 15 * FRAME, 0, "frame_bytes: at least 1"),
        (4096, 15 * FRAME - 1, FRAME, r"pages\[\d\]: a frame lies outside the arena"),
        (4096, I64.max, I64.max // 3, "frames: a page's bytes exceed 64 bits"),
    ],
)
def test_an_invalid_arena_is_rejected(address: int, size: int, frame: int, why: str) -> None:
    tables = Tables(Shape())
    tables.frames[:2] = 14, 13
    with pytest.raises(ValueError, match=f"^{why}"):
        gather(address, size, frame, tables.frames, *tables.shared(1))


def test_the_last_byte_of_a_page_can_be_addressed() -> None:
    """A plane may end with the last byte of the page's frames."""
    tables = Tables(Shape(planes=1))
    tables.planes["at"][0] = len(tables.frames) // 3 * FRAME - 3 * 48 * 16
    gathered(tables)
    scattered(tables)


def test_other_types_are_rejected() -> None:
    tables = Tables(Shape())
    for planes in (7, tables.planes[::2]):
        with pytest.raises((TypeError, BufferError, ValueError)):
            tables.planes = planes  # type: ignore[assignment]
            gather(*tables.plain(1))
