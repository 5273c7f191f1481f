"""Pages of opaque rows: buffers of unequal sizes, copied by each path, and divided among the ranks that have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copy_case_memory import Placed
from copy_cases import Case, Stored, case_of, slot_maps
from fake_queues import LateDevice, LateKernels, LateQueue
from interpreted_kernels import interpreted_kernels
from model_ranks import Page, written
from pagetier.kernels.device import Direction
from pagetier.kernels.gpu.copy_paths import DmaPath, KernelPath, StagedPath
from pagetier.kernels.gpu.launch import GRID
from pagetier.kernels.gpu.staging import Ring, buffer_needed
from pagetier.kernels.host.copy import gather, scatter
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import LayoutError
from pagetier.kernels.layout.page_layout import OpaqueRow, PageLayout, Rows, Shard
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache

BOTH = pytest.mark.parametrize("direction", Direction)
RANKS = (1, 2, 3, 4, 8)
BLOCKS = 6
SIZES = ((64, 656), (8448,), (2, 584), (4, 1024), (2, 3)), ((64, 656), (8448,)), ((7,),)
"""The shape of a block in each buffer of each layer: latents, an index, compressed states, something odd."""


def buffers(seed: int, sizes: Sequence[Sequence[tuple[int, ...]]] = SIZES) -> list[list[Any]]:
    """Returns the buffers of a rank with random bytes and unequal numbers of blocks, at least BLOCKS."""
    random = np.random.default_rng(seed)
    return [
        [random.integers(0, 256, (BLOCKS + (layer + at) % 3, *shape), np.uint8) for at, shape in enumerate(shapes)]
        for layer, shapes in enumerate(sizes)
    ]


def paged(layers: Sequence[Sequence[Any]], rank: int = 0, ranks: int = 1) -> PagedCache:
    cache = engine_layouts.rows(layers)
    return PagedCache(cache, PageLayout.of_rows(cache), Shard(rank, ranks))


def differences(mine: Sequence[Sequence[Any]], its: Sequence[Sequence[Any]]) -> list[tuple[int, int, int]]:
    """Returns layer, buffer and block of each block that differs, of all bytes of all buffers."""
    return [
        (layer, at, block)
        for layer, (one, other) in enumerate(zip(mine, its, strict=True))
        for at, (left, right) in enumerate(zip(one, other, strict=True))
        for block in range(len(left))
        if not np.array_equal(left[block], right[block])
    ]


def store_and_load(writers: Sequence[PagedCache], reader: PagedCache, source: int, target: int) -> None:
    """Stores a block by all ranks into one page, and loads it into another block of a reader."""
    page = Page(reader.page.nbytes, 0xA5)
    for rank in writers:
        for transfer in rank.storing(slot_map([source], 1, 1, 1)):
            gather(transfer, page.frames)
    scatter(reader.loading(slot_map([target], 1, 1, 1)), page.frames)


def expected(before: list[list[Any]], source: list[list[Any]], block: int, target: int) -> list[list[Any]]:
    then = [[buffer.copy() for buffer in layer] for layer in before]
    for layer, its in zip(then, source, strict=True):
        for buffer, other in zip(layer, its, strict=True):
            buffer[target] = other[block]
    return then


# ---- all ranks


@pytest.mark.parametrize("ranks", RANKS)
def test_a_page_has_the_rows_of_all_buffers(ranks: int) -> None:
    """The ranks have the same rows. Each byte of a page is written by one of them, and every rank reads all."""
    source = buffers(1)
    writers = [paged([[one.copy() for one in layer] for layer in source], rank, ranks) for rank in range(ranks)]
    target = buffers(2)
    wanted = expected(target, source, 4, 1)
    store_and_load(writers, paged(target), 4, 1)
    assert differences(target, wanted) == []
    times = written([one for rank in writers for one in rank.storing(slot_map([0], 1, 1, 1))], writers[0].page.nbytes)
    row_bytes = sum(rows.width for layer in writers[0].page.layers for rows in layer)
    assert (int(times.max()), int(times.sum())) == (1, row_bytes)


@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_store_about_as_many_bytes(ranks: int) -> None:
    """Sixty layers of latents and an index, as in DeepSeek V3.2: no rank stores more than one row above the others."""
    page = PageLayout.of_rows(engine_layouts.rows(buffers(1, [((64, 656), (64, 132))] * 60)))
    stored = [0] * ranks
    for layer, writers in zip(page.layers, page.writers(ranks), strict=True):
        for rows, writer in zip(layer, writers, strict=True):
            assert writer is not None
            stored[writer] += rows.width
    assert max(stored) - min(stored) <= 64 * 656


@pytest.mark.parametrize("forgotten", [(0, 1), (0, 4), (1, 0)], ids=str)
def test_a_forgotten_buffer_is_noticed(forgotten: tuple[int, int]) -> None:
    """A page without one buffer leaves the rows of this buffer as they were."""
    source, target = buffers(1), buffers(2)
    wanted = expected(target, source, 4, 1)
    some = [
        [[one for at, one in enumerate(its) if (layer, at) != forgotten] for layer, its in enumerate(whole)]
        for whole in (source, target)
    ]
    store_and_load([paged(some[0])], paged(some[1]), 4, 1)
    assert differences(target, wanted) == [(*forgotten, 1)]


# ---- copy paths


@st.composite
def row_cases(draw: Any) -> Case:
    """Draws pages that are single blocks, with one row in each of up to four buffers of unequal widths."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    widths = draw(st.lists(st.sampled_from([3, 16, 132, 584, 656, 4096, 8448]), min_size=1, max_size=4))
    gaps = st.sampled_from([0, 0, 16])
    tensors = [Stored(("layer", "kind", "block", "token", "head"), 1, 1, 1, width, draw(gaps)) for width in widths]
    return case_of(tensors, draw(slot_maps(rng, 2, 1, 1)), rng)


@BOTH
@given(case=row_cases(), seed=st.integers(0, 2**32 - 1), more=st.integers(0, 2))
@settings(deadline=None, max_examples=40)
def test_copy_engines_move_rows(direction: Direction, case: Case, seed: int, more: int) -> None:
    for staged in (False, True):
        placed, device = Placed(case), LateDevice(seed)
        copy = placed.copy(direction)
        ring = np.zeros(2 * (max(16, buffer_needed(copy)) + more * copy.transfer.page_bytes) + 64, np.uint8)
        begin = ring.ctypes.data + -ring.ctypes.data % 16
        kernels = LateKernels(device)
        path = StagedPath(Ring(begin, len(ring) - 16, owner=ring), device.queues[1], kernels, device.memcpy)
        wanted = placed.after(copy)
        (path if staged else DmaPath(device.memcpy)).enqueue(copy, device.queues[0])
        device.finish()
        placed.expect(wanted)


@BOTH
@given(case=row_cases())
@settings(deadline=None, max_examples=12)
def test_kernels_move_rows(direction: Direction, case: Case) -> None:
    kernels, placed = interpreted_kernels(), Placed(case)
    wanted = placed.after(placed.copy(direction))
    pair = {Direction.STORE: kernels.gather, Direction.LOAD: kernels.scatter}
    KernelPath(GRID, pair).enqueue(placed.copy(direction), LateQueue(0))
    placed.expect(wanted)


# ---- names and rejections


def test_shared_rows_own_rows_and_states_have_names_of_their_own() -> None:
    given = buffers(1)
    cache = engine_layouts.rows(given)
    shared = PageLayout.of_rows(cache)
    layouts = [shared, PageLayout.of(cache, 1), PageLayout.of(engine_layouts.states(given[2:]), 1)]
    assert len({one.layout for one in layouts}) == 3
    assert shared.nbytes == layouts[1].nbytes
    assert shared.layers[2] == (OpaqueRow("row 0", "uint8", 1, 7),)
    assert layouts[1].writers(2) == [[None] * 5, [None] * 2, [None]]


def test_the_name_of_a_layout_of_rows_never_changes() -> None:
    """Pages on disk are found by the name. If this test fails, all stored pages of opaque rows become unreachable."""
    page = PageLayout(1, ((OpaqueRow("row 0", "uint8", 1, 7), Rows("row 1", "uint8", 2, 7)),))
    assert page.layout == "page-1-e2889e89f6b9fb6d8ea82ed0a826ec6c"


def test_blocks_after_those_of_the_smallest_buffer_do_not_exist() -> None:
    cache = paged(buffers(1))
    assert cache.cache.blocks == BLOCKS
    cache.loading(slot_map([BLOCKS - 1], 1, 1, 1))
    with pytest.raises(ValueError, match=f"block {BLOCKS}"):
        cache.loading(slot_map([BLOCKS], 1, 1, 1))


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ([], "a cache needs at least one tensor"),
        ([[]], "a cache needs at least one tensor"),
        ([[np.zeros(())]], r"layer 0, row 0: expected a tensor of shape \[blocks, ...\]"),
        ([[np.zeros((4, 2)), np.zeros((4, 0))]], "layer 0, row 1 is empty"),
        ([[np.zeros((4, 2))], [np.zeros(0)]], "is empty: 0 blocks"),
        ([[np.zeros((4, 8, 8))[:, ::2]]], "layer 0, row 0: a block must be contiguous, but axis 1 has a stride of 128"),
    ],
)
def test_buffers_that_are_no_rows_are_rejected(layers: list[list[Any]], why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        engine_layouts.rows(layers)


def test_a_buffer_that_is_given_twice_is_rejected() -> None:
    one = np.zeros((4, 2))
    with pytest.raises(LayoutError, match="layer 0, row 0 and layer 0, row 1 overlap in memory"):
        engine_layouts.rows([[one, one]])
