"""The host path compared with the oracle in NumPy (`copy_oracle`), in all memory of the cache and of the pages."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from copy_cases import slot_maps  # noqa: E402
from engine_caches import ENGINES, SLOTS, STATES, EngineCache, Shape, hybrid  # noqa: E402
from pagetier.kernels.host.copy import gather, scatter  # noqa: E402
from pagetier.kernels.layout.cache_layout import CacheLayout  # noqa: E402
from pagetier.kernels.layout.frames import Arena, frames_of  # noqa: E402
from pagetier.kernels.layout.page_layout import PageLayout  # noqa: E402
from pagetier.kernels.layout.slot_map import SlotMap, slot_map  # noqa: E402
from pagetier.kernels.layout.transfer import PagedCache  # noqa: E402
from torch_reference import Pages, load_plainly, stored  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int8]
any_engine = pytest.mark.parametrize("engine", ENGINES)
any_times = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32 - 1)


@st.composite
def shapes(draw: Any, slots: SlotMap) -> Shape:
    """Draws a cache for the slots; widths and numbers of heads are rarely powers of two."""
    return Shape(
        layers=draw(st.integers(1, 3)),
        blocks=int(slots.blocks.max()) + 2,
        tokens=slots.block_tokens,
        heads=draw(st.integers(1, 4)),
        width=draw(st.sampled_from([1, 3, 5, 8, 12, 24])),
        dtype=draw(st.sampled_from(DTYPES)),
        shift=draw(st.sampled_from([0, 0, 0, 1])),
    )


def case(data: st.DataObject, engine: str) -> tuple[SlotMap, EngineCache, PageLayout, Pages]:
    seed = data.draw(seeds, "seed")
    torch.manual_seed(seed)
    sizes = int(engine in STATES), int(engine in SLOTS | STATES)
    slots = data.draw(slot_maps(np.random.default_rng(seed), 3, *sizes))
    cache = ENGINES[engine](data.draw(shapes(slots)))
    page_layout = PageLayout.of(cache.layout, slots.page_tokens)
    pages = Pages(len(slots), page_layout.nbytes, data.draw(st.sampled_from([4096, 4096, 96])), seed)
    return slots, cache, page_layout, pages


def check_store(slots: SlotMap, cache: EngineCache, page_layout: PageLayout, pages: Pages) -> None:
    before, expected = cache.copies(), stored(slots, cache, page_layout, pages)
    (transfer,) = PagedCache(cache.layout, page_layout).storing(slots)
    gather(transfer, pages.frames)
    assert np.array_equal(pages.memory, expected)
    assert all(map(torch.equal, cache.memory, before))


def check_load(slots: SlotMap, cache: EngineCache, page_layout: PageLayout, pages: Pages) -> None:
    before, arena = cache.copies(), pages.memory.copy()
    scatter(PagedCache(cache.layout, page_layout).loading(slots), pages.frames)
    found = cache.copies()
    cache.restore(before)
    load_plainly(slots, cache, page_layout, pages)
    assert all(map(torch.equal, found, cache.memory))
    assert np.array_equal(pages.memory, arena)


@any_engine
@any_times
@given(st.data())
def test_a_store_equals_plain_indexing(engine: str, data: st.DataObject) -> None:
    check_store(*case(data, engine))


@any_engine
@any_times
@given(st.data())
def test_a_load_equals_plain_indexing(engine: str, data: st.DataObject) -> None:
    check_load(*case(data, engine))


@any_times
@given(st.data())
def test_a_block_may_be_stored_several_times(data: st.DataObject) -> None:
    slots, cache, page_layout, pages = case(data, "kv_second")
    check_store(msgspec.structs.replace(slots, blocks=slots.blocks // 2), cache, page_layout, pages)


@any_times
@given(st.data(), seeds, st.sampled_from(DTYPES))
def test_groups_of_a_hybrid_model_share_bytes(data: st.DataObject, seed: int, dtype: Any) -> None:
    """Blocks of one group are stored and loaded while the blocks of the other group lie between them."""
    torch.manual_seed(seed)
    slots = data.draw(slot_maps(np.random.default_rng(seed), 3))
    shape = Shape(2, int(slots.blocks.max()) + 3, slots.block_tokens, 3, 5, dtype)
    attention, states = hybrid(shape.blocks, shape, dtype)
    free = sorted({*range(shape.blocks)} - {*slots.blocks.tolist()}, reverse=True)
    for which, cache in ((slots, attention), (slot_map(free, len(free), 1, 1), states)):
        page_layout = PageLayout.of(cache.layout, which.page_tokens)
        pages = Pages(len(which), page_layout.nbytes, 4096, seed)
        check_store(which, cache, page_layout, pages)
        check_load(which, cache, page_layout, Pages(len(which), page_layout.nbytes, 4096, seed + 1))


@pytest.mark.parametrize("engine", ["vllm BLHNC", "token_slots", "latents"])
def test_many_bytes_are_copied_by_several_threads(engine: str) -> None:
    """Enough bytes for several threads, and pages of many frames."""
    torch.manual_seed(7)
    tokens, page_tokens = (1, 24) if engine in SLOTS else (8, 24)
    shape = Shape(4, 400 // tokens, tokens, 6, 40, torch.bfloat16)
    slots = slot_map(torch.randperm(shape.blocks)[: 384 // tokens], 16, page_tokens, tokens, 0, range(1, 383))
    cache = ENGINES[engine](shape)
    page_layout = PageLayout.of(cache.layout, page_tokens)
    pages = Pages(16, page_layout.nbytes, 4096, 7)
    before, expected = cache.copies(), stored(slots, cache, page_layout, pages)
    paged = PagedCache(cache.layout, page_layout)
    (storing,) = paged.storing(slots)
    gather(storing, pages.frames, threads=3)
    assert np.array_equal(pages.memory, expected)
    for memory in cache.memory:
        memory.zero_()
    zeroes = cache.copies()
    scatter(paged.loading(slots), pages.frames, threads=3)
    found = cache.copies()
    cache.restore(zeroes)
    load_plainly(slots, cache, page_layout, pages)
    assert all(map(torch.equal, found, cache.memory))
    assert not all(map(torch.equal, before, zeroes))


def test_empty_copies_change_nothing() -> None:
    cache = ENGINES["kv_first"](Shape(1, 4, 2, 1, 3, torch.float16))
    page_layout = PageLayout.of(cache.layout, 3)
    pages = Pages(0, page_layout.nbytes, 4096, 0)
    paged, nothing = PagedCache(cache.layout, page_layout), slot_map([], 0, 3, 2)
    arena, before = pages.memory.copy(), cache.copies()
    (storing,) = paged.storing(nothing)
    gather(storing, pages.frames)
    scatter(paged.loading(nothing), pages.frames)
    assert np.array_equal(pages.memory, arena)
    assert all(map(torch.equal, cache.memory, before))


# ---- rejected before anything is copied


def refused(why: str, transfer: Any, frames: Any, untouched: list[Any]) -> None:
    before = [torch.as_tensor(memory).clone() for memory in untouched]
    for copy in (gather, scatter):
        with pytest.raises(ValueError, match=why):
            copy(transfer, frames)
    assert all(map(torch.equal, map(torch.as_tensor, untouched), before))


def small() -> tuple[EngineCache, PagedCache, Pages]:
    cache = ENGINES["kv_first"](Shape(1, 4, 2, 2, 256, torch.float32))
    page_layout = PageLayout.of(cache.layout, 2)
    return cache, PagedCache(cache.layout, page_layout), Pages(2, page_layout.nbytes, 4096, 0)


def test_frames_of_another_number_of_pages_are_rejected() -> None:
    cache, paged, pages = small()
    transfer = paged.loading(slot_map([0, 1], 1, 2, 2))
    refused("the frames hold 2 pages of at most 8192 bytes, but there are 1", transfer, pages.frames, cache.memory)


def test_frames_that_do_not_hold_a_page() -> None:
    cache, paged, pages = small()
    transfer = paged.loading(slot_map([0, 1], 2, 2, 2))
    half = frames_of(pages.arena, pages.table[:, :1])
    refused("pages of at most 4096 bytes, but there are 2 pages of 8192", transfer, half, [*cache.memory, pages.memory])


@pytest.mark.parametrize("frame", [-1, 7, 2**31, 2**32 + 1])
def test_a_frame_outside_the_arena_is_rejected(frame: int) -> None:
    _, _, pages = small()
    table = pages.table.astype(np.int64)
    table[1, 0] = frame
    with pytest.raises(ValueError, match=f"frame {frame} does not exist: the arena has 7 frames of 4096 bytes"):
        frames_of(pages.arena, table)


@pytest.mark.parametrize("table", [[], [1, 2], [[1.0]], [[True]], [["1"]], np.zeros((1, 1, 1), np.int32)], ids=repr)
def test_what_is_no_table_of_frames(table: Any) -> None:
    with pytest.raises(ValueError, match=r"expected a table of integers \[pages, frames\]"):
        frames_of(Arena(4096, 8192, 4096), table)


def test_a_table_of_frames_is_what_was_checked() -> None:
    table = np.array([[0, 1]], np.int32)
    frames = frames_of(Arena(4096, 8192, 4096), table)
    table[:] = 99
    assert frames.table.tolist() == [[0, 1]]


@pytest.mark.parametrize(("address", "nbytes", "frame"), [(0, 4096, 4096), (64, -1, 4096), (64, 4096, 0)])
def test_an_invalid_arena_is_rejected(address: int, nbytes: int, frame: int) -> None:
    with pytest.raises(ValueError, match=f"{nbytes} bytes at .* in frames of {frame} are not a valid arena"):
        Arena(address, nbytes, frame)


def test_a_cache_on_another_device_is_rejected() -> None:
    cache, paged, pages = small()
    layout = CacheLayout(paged.cache.planes, "cuda:0", paged.cache.owners)
    transfer = PagedCache(layout, paged.page).loading(slot_map([0, 1], 2, 2, 2))
    refused("the cache is on cuda:0, but the host path copies host memory only", transfer, pages.frames, cache.memory)
