"""Ranks of any number write one page and read it, byte for byte; what a copy may not do is refused before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetier.kernels import caches
from pagetier.kernels.frames import Arena, Frames, frames_of
from pagetier.kernels.host_copy import gather, scatter
from pagetier.kernels.layout import CacheLayout, LayoutError, joined
from pagetier.kernels.page import PageOrder, Shard
from pagetier.kernels.slots import SlotMap, joined_slots, slot_map
from pagetier.kernels.transfer import PagedCache, Transfer

Bytes = npt.NDArray[np.uint8]
State = npt.NDArray[np.uint16]
BLOCKS, BLOCK_TOKENS, FRAME = 9, 3, 64
DEGREES = (1, 2, 4, 8)
POISON = 0xDEAD


class Model(msgspec.Struct, frozen=True, eq=False):
    """state: [layers, kinds, heads, tokens, elements] of one page."""

    state: State
    order: PageOrder

    @property
    def page(self) -> Bytes:
        """As all of it lies in a page; what is between planes is 0."""
        page = np.zeros(self.order.nbytes, np.uint8)
        for layer, offsets in enumerate(self.order.offsets):
            for kind, offset in enumerate(offsets):
                plane = self.state[layer, kind].tobytes()
                page[offset : offset + len(plane)] = np.frombuffer(plane, np.uint8)
        return page

    @property
    def covered(self) -> npt.NDArray[np.bool_]:
        """Which bytes of a page are some plane's."""
        ones = msgspec.structs.replace(self, state=np.full_like(self.state, 0xFFFF))
        return ones.page > 0


class Rank(msgspec.Struct, frozen=True, eq=False):
    """rows: views of memory, [layer][kind], [blocks, tokens, heads, elements]. part: what of the model is its own."""

    memory: list[State]
    rows: list[list[State]]
    paged: PagedCache
    part: tuple[slice, slice, slice]

    def write(self, model: Model, table: Sequence[int], tokens: range) -> None:
        """As if the engine had computed these tokens."""
        its = model.state[self.part]
        for rows, layer in zip(self.rows, its, strict=True):
            for plane, state in zip(rows, layer, strict=True):
                for token in tokens:
                    plane[table[token // BLOCK_TOKENS], token % BLOCK_TOKENS] = state[:, token]


def _poisoned(*shape: int) -> State:
    return np.full(shape, POISON, np.uint16)


def _separate(layers: int, heads: int, width: int) -> tuple[list[State], list[list[State]], CacheLayout]:
    """Heads before tokens in memory."""
    raw = [_poisoned(BLOCKS, heads, BLOCK_TOKENS, width) for _ in range(2 * layers)]
    views = [one.swapaxes(1, 2) for one in raw]
    cache = caches.separate_blocks(views[::2], views[1::2])
    return raw, [[k, v] for k, v in zip(views[::2], views[1::2], strict=True)], cache


def _together(layers: int, heads: int, width: int) -> tuple[list[State], list[list[State]], CacheLayout]:
    """Blocks outermost, then heads, then layers."""
    raw = _poisoned(BLOCKS, heads, layers, BLOCK_TOKENS, 2 * width)
    tensors = [raw[:, :, layer] for layer in range(layers)]
    rows = [[t.swapaxes(1, 2)[..., :width], t.swapaxes(1, 2)[..., width:]] for t in tensors]
    return [raw], rows, caches.vllm(tensors)


def _latent(layers: int, heads: int, width: int) -> tuple[list[State], list[list[State]], CacheLayout]:
    assert heads == 1
    raw = [_poisoned(BLOCKS, BLOCK_TOKENS, width) for _ in range(layers)]
    return raw, [[one[:, :, None]] for one in raw], caches.latents(raw)


Make = Callable[[int, int, int], tuple[list[State], list[list[State]], CacheLayout]]


class Group(msgspec.Struct, frozen=True):
    """The ranks of an engine, and what its caches are like."""

    ranks: int
    stages: int
    make: Make

    def __str__(self) -> str:
        return f"{self.ranks}x{self.stages}"

    def of(self, model: Model, tokens: int) -> list[Rank]:
        """All ranks, with poisoned caches."""
        return [self._rank(model, tokens, stage, rank) for stage in range(self.stages) for rank in range(self.ranks)]

    def _rank(self, model: Model, tokens: int, stage: int, rank: int) -> Rank:
        all_layers, _, all_heads, _, width = model.state.shape
        layers, heads = all_layers // self.stages, max(1, all_heads // self.ranks)
        first = rank * all_heads // self.ranks
        memory, rows, cache = self.make(layers, heads, width)
        order = PageOrder.of_model(cache, tokens, all_heads, all_layers)
        assert order.layout == model.order.layout
        shard = Shard(rank, self.ranks, stage, (layers,) * self.stages)
        part = (slice(stage * layers, (stage + 1) * layers), slice(None), slice(first, first + heads))
        return Rank(memory, rows, PagedCache(cache, order, shard), part)


def model_of(heads: int, tokens: int, kinds: int = 2, width: int = 5) -> Model:
    """Of two layers. No element is POISON."""
    state = np.random.default_rng([heads, tokens]).integers(0, POISON, (2, kinds, heads, tokens, width), np.uint16)
    make = _separate if kinds == 2 else _latent
    return Model(state, PageOrder.of(make(2, heads, width)[2], tokens))


class Page:
    """Memory for one page whose frames are out of order; filled with a byte before."""

    def __init__(self, nbytes: int, fill: int) -> None:
        count = -(-nbytes // FRAME) + 2
        self._memory = np.full((count, FRAME), fill, np.uint8)
        self._chain = np.random.default_rng(nbytes).permutation(count)[: count - 2]
        self._nbytes = nbytes
        arena = Arena(self._memory.ctypes.data, self._memory.nbytes, FRAME, self._memory)
        self.frames: Frames = frames_of(arena, self._chain[None])

    @property
    def bytes(self) -> Bytes:
        """Of the page."""
        return self._memory[self._chain].reshape(-1)[: self._nbytes]

    def put(self, page: Bytes) -> None:
        """Into its frames."""
        padded = np.zeros(len(self._chain) * FRAME, np.uint8)
        padded[: len(page)] = page
        self._memory[self._chain] = padded.reshape(-1, FRAME)


def written(transfers: Sequence[Transfer], nbytes: int) -> npt.NDArray[np.int64]:
    """How often each byte of the page is written."""
    times = np.zeros(nbytes, np.int64)
    for transfer in transfers:
        dark, light = Page(nbytes, 0), Page(nbytes, 0xFF)
        for page in (dark, light):
            gather(transfer, page.frames)
        times += (dark.bytes != 0) | (light.bytes != 0xFF)
    return times


def slots_of(seed: int, page_tokens: int, tokens: range | None = None) -> tuple[list[int], SlotMap]:
    """One page, in blocks drawn at random."""
    table = np.random.default_rng(seed).permutation(BLOCKS)[: -(-page_tokens // BLOCK_TOKENS)].tolist()
    return table, slot_map(table, 1, page_tokens, BLOCK_TOKENS, tokens=tokens)


GROUPS = [Group(ranks, stages, make) for make, stages in ((_separate, 1), (_together, 2)) for ranks in DEGREES]
any_group = pytest.mark.parametrize("group", GROUPS, ids=str)
any_heads = pytest.mark.parametrize("heads", DEGREES)


def check_store(model: Model, group: Group, tokens: int, some: range) -> None:
    """All ranks write into one page, and no byte of it twice."""
    table, slots = slots_of(group.ranks, tokens, some)
    page, times = Page(model.order.nbytes, 0xA5), np.zeros(model.order.nbytes, np.int64)
    for rank in group.of(model, tokens):
        rank.write(model, table, range(tokens))
        before = [memory.copy() for memory in rank.memory]
        transfers = rank.paged.storing(slots)
        for transfer in transfers:
            gather(transfer, page.frames)
        times += written(transfers, model.order.nbytes)
        assert all(map(np.array_equal, rank.memory, before))
    partly = np.zeros_like(model.state)
    partly[:, :, :, some.start : some.stop] = 0xFFFF
    wanted = msgspec.structs.replace(model, state=partly).page > 0
    assert (times == wanted).all()
    assert np.array_equal(page.bytes, np.where(wanted, model.page, 0xA5))


def check_load(model: Model, group: Group, tokens: int, some: range) -> None:
    """Each rank has just its heads and layers then, just of these tokens."""
    table, slots = slots_of(group.ranks + 100, tokens, some)
    page = Page(model.order.nbytes, 0)
    page.put(model.page)
    for rank, expected in zip(group.of(model, tokens), group.of(model, tokens), strict=True):
        expected.write(model, table, some)
        scatter(rank.paged.loading(slots), page.frames)
        assert all(map(np.array_equal, rank.memory, expected.memory))
    assert np.array_equal(page.bytes, model.page)


@any_group
@any_heads
@pytest.mark.parametrize("tokens", [5, 12])
def test_all_ranks_write_the_page_of_the_whole_model(heads: int, group: Group, tokens: int) -> None:
    check_store(model_of(heads, tokens), group, tokens, range(tokens))


@any_group
@any_heads
def test_all_ranks_load_their_share(heads: int, group: Group) -> None:
    check_load(model_of(heads, 7), group, 7, range(7))


@any_heads
def test_a_page_of_one_group_is_a_page_of_every_other(heads: int) -> None:
    """Stored by each, loaded by each: the bytes are the same, so that every pair is there."""
    model, pages = model_of(heads, 7), []
    for group in GROUPS:
        table, slots = slots_of(group.ranks, 7)
        page = Page(model.order.nbytes, 0)
        for rank in group.of(model, 7):
            rank.write(model, table, range(7))
            for transfer in rank.paged.storing(slots):
                gather(transfer, page.frames)
        pages.append(page)
    for page in pages:
        for group in GROUPS:
            table, slots = slots_of(group.ranks + 50, 7)
            for rank, expected in zip(group.of(model, 7), group.of(model, 7), strict=True):
                scatter(rank.paged.loading(slots), page.frames)
                expected.write(model, table, range(7))
                assert all(map(np.array_equal, rank.memory, expected.memory))


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(GROUPS), st.sampled_from(DEGREES), st.integers(1, 13), st.data())
def test_parts_of_pages(group: Group, heads: int, tokens: int, data: st.DataObject) -> None:
    some = range(*sorted(data.draw(st.tuples(*[st.integers(0, tokens)] * 2))))
    check_store(model_of(heads, tokens), group, tokens, some)
    check_load(model_of(heads, tokens), group, tokens, some)


@pytest.mark.parametrize("ranks", DEGREES)
@pytest.mark.parametrize("tokens", [1, 5, 12])
def test_ranks_of_a_latent_share_its_tokens(ranks: int, tokens: int) -> None:
    model, group = model_of(1, tokens, kinds=1, width=36), Group(ranks, 2, _latent)
    check_store(model, group, tokens, range(tokens))
    check_load(model, group, tokens, range(tokens))
    stored = [
        transfer.nbytes for rank in group.of(model, tokens) for transfer in rank.paged.storing(slots_of(0, tokens)[1])
    ]
    assert max(stored) - min(stored) <= 72
    assert sum(stored) == model.state.nbytes


def test_all_ranks_cover_the_planes_and_nothing_else() -> None:
    """The planes are 30 bytes a head and token here, so that there is something between them."""
    model = model_of(1, 1, width=5)
    assert model.covered.sum() == model.state.nbytes < model.order.nbytes


def test_planes_that_are_shared_differently() -> None:
    """Heads of K and V for each rank, and one latent for all: two copies."""
    kv = caches.separate_blocks(*([np.ones((9, 3, 2, 4), np.uint8)] for _ in range(2)))
    cache = joined(kv, caches.latents([np.ones((9, 3, 10), np.uint8)]))
    order = PageOrder.of_model(cache, 6, {"k": 8, "v": 8}, 1)
    _, slots = slots_of(0, 6)
    times = np.zeros(order.nbytes, np.int64)
    for rank in range(4):
        transfers = PagedCache(cache, order, Shard(rank, 4)).storing(slots)
        assert [list(transfer.planes[:, 7]) for transfer in transfers] == [[4, 4], [10]]
        times += written(transfers, order.nbytes)
    k, v, latent = order.offsets[0]
    wanted = np.zeros(order.nbytes, np.int64)
    for begin, count in ((k, 8 * 6 * 4), (v, 8 * 6 * 4), (latent, 6 * 10)):
        wanted[begin : begin + count] = 1
    assert times.tolist() == wanted.tolist()


@pytest.mark.parametrize(("heads", "ranks"), [(6, 4), (8, 3), (3, 2), (4, 6)])
def test_heads_that_ranks_can_not_share(heads: int, ranks: int) -> None:
    _, _, cache = _separate(2, max(1, heads // ranks), 5)
    order = PageOrder.of_model(cache, 4, heads, 2)
    with pytest.raises(LayoutError, match=f"{heads} heads can not be divided among {ranks} ranks"):
        PagedCache(cache, order, Shard(0, ranks))


# ---- tables


def test_the_table_of_planes() -> None:
    (raw_k, raw_v), _, cache = _separate(1, 2, 5)
    order = PageOrder.of_model(cache, 4, 8, 1)
    its = PagedCache(cache, order, Shard(3, 4)).loading(slots_of(0, 4)[1])
    head = 4 * 10
    assert its.planes.tolist() == [
        [raw_k.ctypes.data, 60, 10, 30, 6 * head, head, 2, 10],
        [raw_v.ctypes.data, 60, 10, 30, 320 + 6 * head, head, 2, 10],
    ]
    assert its.planes.dtype == np.int64
    assert its.planes.flags.c_contiguous
    assert (its.page_bytes, its.device, its.nbytes) == (order.nbytes, "cpu", 2 * 2 * 4 * 10)


def test_rows_of_some_layers() -> None:
    one = [np.zeros((2, 9, 3, 1, 4), np.uint8) for _ in range(3)]
    cache = caches.kv_first(one)
    its = PagedCache(cache, PageOrder.of(cache, 3)).loading(slots_of(0, 3)[1])
    assert its.layers.tolist() == [0, 0, 1, 1, 2, 2]
    assert its.planes_of(range(3)) == range(6)
    assert its.planes_of(range(1, 2)) == range(2, 4)
    assert its.planes_of(range(2, 2)) == range(4, 4)
    assert its.planes_of(range(2, 9)) == range(4, 6)


def test_bytes_that_move() -> None:
    _, _, cache = _together(2, 2, 5)
    paged = PagedCache(cache, PageOrder.of(cache, 4))
    slots = slot_map(range(4), 3, 4, 3, tokens=range(1, 10))
    token = 2 * 2 * 2 * 10
    assert paged.loading(slots).nbytes == 9 * token
    assert paged.loading(slots.without([False, True, False])).nbytes == 5 * token


def test_memory_lives_as_long_as_its_copies() -> None:
    memory, _, cache = _together(2, 2, 5)
    transfer = PagedCache(cache, PageOrder.of(cache, 4)).loading(slots_of(0, 4)[1])
    assert any(np.shares_memory(owner, memory[0]) for owner in transfer.owners)


# ---- refused


def whole(heads: int = 2, layers: int = 2, width: int = 5) -> tuple[CacheLayout, PageOrder]:
    _, _, cache = _separate(layers, heads, width)
    return cache, PageOrder.of(cache, 4)


def test_another_dtype_than_the_page() -> None:
    """Of as many bytes."""
    cache, _ = whole()
    other = caches.separate_blocks(*([np.zeros((9, 3, 2, 5), np.float16)] * 1 for _ in range(2)))
    with pytest.raises(
        LayoutError, match="layer 0, k: rows of 10 bytes of uint16, but the page has 10 bytes of float16"
    ):
        PagedCache(cache, PageOrder.of_model(other, 4, 2, 2))


def test_another_width_than_the_page() -> None:
    with pytest.raises(
        LayoutError, match="layer 0, k: rows of 10 bytes of uint16, but the page has 12 bytes of uint16"
    ):
        PagedCache(whole()[0], whole(width=6)[1])


def test_other_planes_than_the_page() -> None:
    cache, order = whole()
    _, _, latent = _latent(2, 1, 5)
    with pytest.raises(LayoutError, match="layer 0 has latent, but the page k, v"):
        PagedCache(latent, order)
    with pytest.raises(LayoutError, match="layer 0 has k, v, but the page latent"):
        PagedCache(cache, PageOrder.of(latent, 4))


def test_another_number_of_heads() -> None:
    cache, _ = whole()
    with pytest.raises(LayoutError, match="layer 0, k: 2 heads, but rank 0 of 1 has 4 of 4"):
        PagedCache(cache, PageOrder.of_model(cache, 4, 4, 2))
    with pytest.raises(LayoutError, match="layer 0, k: 2 heads, but rank 1 of 2 has 1 of 2"):
        PagedCache(cache, PageOrder.of(cache, 4), Shard(1, 2))


@pytest.mark.parametrize(
    ("stage", "stages", "of"),
    [(0, (), 4), (0, (2,), 4), (0, (2, 3), 4), (0, (1, 3), 4), (1, (2, 1), 3), (1, (1, 1), 2)],
)
def test_stages_that_do_not_add_up(stage: int, stages: tuple[int, ...], of: int) -> None:
    """A page would appear, with layers that nobody wrote."""
    cache, _ = whole()
    with pytest.raises(LayoutError, match="layers"):
        PagedCache(cache, PageOrder.of_model(cache, 4, 2, of), Shard(0, 1, stage, stages))


def test_stages_of_different_sizes() -> None:
    cache, _ = whole()
    order = PageOrder.of_model(cache, 4, 2, 7)
    for stages, stage, first in (
        ((2, 5), 0, 0),
        ((2, 2, 3), 1, 2),
        ((1, 2, 4), 1, 1),
        ((4, 1, 2), 2, 5),
        ((5, 2), 1, 5),
    ):
        at = PagedCache(cache, order, Shard(0, 1, stage, stages)).loading(slots_of(0, 4)[1]).planes[0, 4]
        assert at == order.offsets[first][0]


both_ways = pytest.mark.parametrize("way", [PagedCache.loading, PagedCache.storing], ids=["load", "store"])


@both_ways
def test_pages_and_blocks_of_other_sizes(way: Any) -> None:
    paged = PagedCache(*whole())
    for page, block in ((5, 3), (4, 2)):
        why = f"pages of {page} tokens in blocks of {block}, but the pages have 4 and the cache's blocks 3"
        with pytest.raises(ValueError, match=why):
            way(paged, slot_map([0, 1, 2, 3], 1, page, block))


@both_ways
def test_a_block_that_the_cache_does_not_have(way: Any) -> None:
    paged = PagedCache(*whole())
    for table in ([0, 9], [9, 0], [0, 2**31 - 1]):
        with pytest.raises(ValueError, match=f"block {max(table)}, but the cache has 9"):
            way(paged, slot_map(table, 1, 4, 3))


@both_ways
def test_blocks_that_are_not_copied_are_not_looked_at(way: Any) -> None:
    """Behind the tokens, before them, and of pages that are skipped."""
    paged = PagedCache(*whole())
    way(paged, slot_map([0, 1, 9], 1, 4, 3))
    way(paged, slot_map([9, 9, 0, 1], 1, 4, 3, position=6))
    way(paged, slot_map([0, 1, 99, 99], 3, 4, 3).without([False, True, True]))


def test_a_block_twice_in_a_load() -> None:
    paged = PagedCache(*whole())
    twice = slot_map([0, 1, 5, 1], 3, 4, 3)
    with pytest.raises(ValueError, match="block 1 would be loaded 2 times"):
        paged.loading(twice)
    with pytest.raises(ValueError, match="block 1 would be loaded 2 times"):
        paged.loading(twice.without([True, False, False]))
    assert len(paged.loading(twice.without([False, False, True])).slots) == 3
    assert len(paged.storing(twice)) == 1


def test_a_block_of_two_requests_in_a_load() -> None:
    paged = PagedCache(*whole())
    one, other = slot_map([0, 1], 1, 4, 3), slot_map([2, 0], 1, 4, 3)
    with pytest.raises(ValueError, match="block 0 would be loaded 2 times"):
        paged.loading(joined_slots(one, other))
    assert len(paged.loading(joined_slots(one, other.without([True]))).slots) == 2
    assert len(paged.loading(joined_slots(one, slot_map([2, 3, 0], 1, 4, 3))).slots) == 2


def test_two_pages_for_the_same_tokens_in_a_load() -> None:
    """They begin in one block, which is in the table once."""
    paged = PagedCache(*whole())
    slots = slot_map([0, 1, 2], 2, 4, 3)
    pages = slots.pages - np.array([[0, 0, 0], [1, 0, 0]])
    overlapping = msgspec.structs.replace(slots, pages=pages)
    with pytest.raises(ValueError, match="two pages would be loaded to the same tokens"):
        paged.loading(overlapping)
    assert len(paged.loading(overlapping.without([True, False])).slots) == 2
    assert len(paged.storing(overlapping)) == 1
