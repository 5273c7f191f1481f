"""A transfer in the form that copies take: its tables, bytes and references; invalid copies are rejected."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from model_ranks import BLOCKS, latents, separate_blocks, vllm
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import CacheLayout, LayoutError
from pagetier.kernels.layout.page_layout import PageLayout, Shard
from pagetier.kernels.layout.slot_map import joined_slots, slot_map
from pagetier.kernels.layout.tables import PLANE, TOKENS, token_rows
from pagetier.kernels.layout.transfer import PagedCache


def test_the_table_of_planes() -> None:
    cache = separate_blocks(1, 2, 5)
    raw_k, raw_v = cache.raw
    page_layout = PageLayout.of_model(cache.layout, 4, 8, 1)
    its = PagedCache(cache.layout, page_layout, Shard(3, 4)).loading(slot_map([0, 1], 1, 4, 3))
    head = 4 * 10
    assert its.planes.tolist() == [
        (raw_k.ctypes.data, 60, 10, 30, 6 * head, head, 2, 10),
        (raw_v.ctypes.data, 60, 10, 30, 320 + 6 * head, head, 2, 10),
    ]
    assert its.planes.dtype == PLANE
    assert its.planes.flags.c_contiguous
    assert (its.page_bytes, its.device, its.nbytes) == (page_layout.nbytes, "cpu", 2 * 2 * 4 * 10)


def test_kernels_on_a_device_find_the_fields_where_they_read_them() -> None:
    """triton_kernels.py reads the tables as plain numbers in this order."""
    assert PLANE.names == ("base", "block", "token", "head", "at", "page_head", "heads", "width")
    assert TOKENS.names == ("position", "first", "end")


def test_rows_of_some_layers() -> None:
    one = [np.zeros((2, 9, 3, 1, 4), np.uint8) for _ in range(3)]
    cache = engine_layouts.kv_first(one)
    its = PagedCache(cache, PageLayout.of(cache, 3)).loading(slot_map([0], 1, 3, 3))
    assert its.layers.tolist() == [0, 0, 1, 1, 2, 2]
    assert its.by_layer(3) == [(range(2), 8), (range(2, 4), 8), (range(4, 6), 8)]
    assert its.by_layer(4)[3] == (range(6, 6), 0)


def test_bytes_that_move() -> None:
    cache = vllm(2, 2, 5).layout
    paged = PagedCache(cache, PageLayout.of(cache, 4))
    slots = slot_map(range(4), 3, 4, 3, tokens=range(1, 10))
    token = 2 * 2 * 2 * 10
    assert paged.loading(slots).nbytes == 9 * token
    assert paged.loading(slots.without([False, True, False])).nbytes == 5 * token


def test_memory_lives_as_long_as_its_copies() -> None:
    cache = vllm(2, 2, 5)
    transfer = PagedCache(cache.layout, PageLayout.of(cache.layout, 4)).loading(slot_map([0, 1], 1, 4, 3))
    assert any(np.shares_memory(owner, cache.raw[0]) for owner in transfer.owners)


# ---- rejected


def whole(heads: int = 2, layers: int = 2, width: int = 5) -> tuple[CacheLayout, PageLayout]:
    cache = separate_blocks(layers, heads, width).layout
    return cache, PageLayout.of(cache, 4)


FLOATS = engine_layouts.separate_blocks(*([np.zeros((9, 3, 2, 5), np.float16)] * 1 for _ in range(2)))
LATENT = latents(2, 1, 5).layout
ROWS = "layer 0, k: rows of 10 bytes of uint16, but the page has"


def page_of(layers: int = 2, heads: int = 2) -> PageLayout:
    return PageLayout.of_model(whole()[0], 4, heads, layers)


STAGES = [(0, (), 4), (0, (2,), 4), (0, (2, 3), 4), (0, (1, 3), 4), (1, (2, 1), 3), (1, (1, 1), 2)]
REJECTED: list[tuple[Callable[[], object], str]] = [
    # The dtypes have the same size.
    (lambda: PagedCache(whole()[0], PageLayout.of_model(FLOATS, 4, 2, 2)), f"{ROWS} 10 bytes of float16"),
    (lambda: PagedCache(whole()[0], whole(width=6)[1]), f"{ROWS} 12 bytes of uint16"),
    (lambda: PagedCache(LATENT, whole()[1]), "layer 0 has latent, but the page k, v"),
    (lambda: PagedCache(whole()[0], PageLayout.of(LATENT, 4)), "layer 0 has k, v, but the page latent"),
    (lambda: PagedCache(whole()[0], page_of(heads=4)), "layer 0, k: 2 heads, but rank 0 of 1 has 4 of 4"),
    (lambda: PagedCache(*whole(), Shard(1, 2)), "layer 0, k: 2 heads, but rank 1 of 2 has 1 of 2"),
    # Stages that do not add up: a page would be complete although no rank wrote some of its layers.
    *(
        (partial(PagedCache, whole()[0], page_of(layers), Shard(0, 1, stage, stages)), "layers")
        for stage, stages, layers in STAGES
    ),
    *(
        (
            partial(PagedCache, whole(max(1, heads // ranks))[0], page_of(heads=heads), Shard(0, ranks)),
            f"{heads} heads cannot be divided among {ranks} ranks",
        )
        for heads, ranks in ((6, 4), (8, 3), (3, 2), (4, 6))
    ),
]


@pytest.mark.parametrize(("make", "why"), REJECTED)
def test_caches_that_do_not_fit_the_pages_are_rejected(make: Callable[[], object], why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        make()


def test_stages_of_different_sizes() -> None:
    cache, _ = whole()
    page_layout = PageLayout.of_model(cache, 4, 2, 7)
    for stages, stage, first in (
        ((2, 5), 0, 0),
        ((2, 2, 3), 1, 2),
        ((1, 2, 4), 1, 1),
        ((4, 1, 2), 2, 5),
        ((5, 2), 1, 5),
    ):
        at = (
            PagedCache(cache, page_layout, Shard(0, 1, stage, stages))
            .loading(slot_map([0, 1], 1, 4, 3))
            .planes["at"][0]
        )
        assert at == page_layout.offsets[first][0]


@pytest.fixture
def paged() -> PagedCache:
    return PagedCache(*whole())


both_ways = pytest.mark.parametrize("way", [PagedCache.loading, PagedCache.storing], ids=["load", "store"])


@both_ways
def test_pages_and_blocks_of_other_sizes_are_rejected(way: Any, paged: PagedCache) -> None:
    for page, block in ((5, 3), (4, 2)):
        why = f"pages of {page} tokens in blocks of {block}, the cache pages of 4 and blocks of 3"
        with pytest.raises(ValueError, match=why):
            way(paged, slot_map([0, 1, 2, 3], 1, page, block))


@both_ways
def test_a_block_that_the_cache_does_not_have(way: Any, paged: PagedCache) -> None:
    for table in ([0, BLOCKS], [BLOCKS, 0], [0, 2**31 - 1]):
        with pytest.raises(ValueError, match=f"block {max(table)} does not exist: the cache has {BLOCKS}"):
            way(paged, slot_map(table, 1, 4, 3))


@both_ways
def test_blocks_that_are_not_copied_are_not_validated(way: Any, paged: PagedCache) -> None:
    """Blocks after the tokens, before them, and of skipped pages."""
    way(paged, slot_map([0, 1, BLOCKS], 1, 4, 3))
    way(paged, slot_map([BLOCKS, BLOCKS, 0, 1], 1, 4, 3, position=6))
    way(paged, slot_map([0, 1, 99, 99], 3, 4, 3).without([False, True, True]))


@pytest.mark.parametrize("pages", [0, 1, 63, 65, 64, 500])
def test_whole_pages_in_a_row(paged: PagedCache, pages: int) -> None:
    """Four blocks of three tokens have three pages of four."""
    ids, skip = np.arange(12 * pages, dtype=np.int32) // 3, np.zeros(0, np.uint8)
    its, expected = paged.in_a_row(ids, skip), slot_map(ids, 9 * pages, 4, 3)
    assert its.pages.tolist() == expected.pages.tolist() and its.blocks.tolist() == expected.blocks.tolist()
    assert not its.pages.flags.writeable
    with pytest.raises(ValueError, match=f"{len(ids) + 1} blocks end with 3 tokens of a page of 4"):
        paged.in_a_row(np.append(ids, np.int32(0)), skip)


def test_a_block_twice_in_a_load(paged: PagedCache) -> None:
    twice = slot_map([0, 1, 5, 1], 3, 4, 3)
    with pytest.raises(ValueError, match="block 1 would be loaded twice"):
        paged.loading(twice)
    with pytest.raises(ValueError, match="block 1 would be loaded twice"):
        paged.loading(twice.without([True, False, False]))
    assert len(paged.loading(twice.without([False, False, True])).slots) == 3
    assert len(paged.storing(twice)) == 1


def test_a_block_of_two_requests_in_a_load(paged: PagedCache) -> None:
    one, other = slot_map([0, 1], 1, 4, 3), slot_map([2, 0], 1, 4, 3)
    with pytest.raises(ValueError, match="block 0 would be loaded twice"):
        paged.loading(joined_slots(one, other))
    assert len(paged.loading(joined_slots(one, other.without([True]))).slots) == 2
    assert len(paged.loading(joined_slots(one, slot_map([2, 3, 0], 1, 4, 3))).slots) == 2


def test_two_pages_for_the_same_tokens_in_a_load(paged: PagedCache) -> None:
    """They begin in the same block, which is in the table once."""
    slots = slot_map([0, 1, 2], 2, 4, 3)
    pages = token_rows(slots.pages["position"] - [0, 1], slots.pages["first"], slots.pages["end"])
    overlapping = msgspec.structs.replace(slots, pages=pages)
    with pytest.raises(ValueError, match="two pages would be loaded to the same tokens"):
        paged.loading(overlapping)
    assert len(paged.loading(overlapping.without([True, False])).slots) == 2
    assert len(paged.storing(overlapping)) == 1
