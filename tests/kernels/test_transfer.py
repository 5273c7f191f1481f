"""Any number of ranks write one page and read it, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_ranks import Group, Model, Page, latents, page_bytes, separate_blocks, vllm, written
from pagetier.kernels.host.copy import gather, scatter
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import joined
from pagetier.kernels.layout.page_layout import PageLayout, Shard
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache

DEGREES = (1, 2, 4, 8)

GROUPS = [Group(ranks, stages, build) for build, stages in ((separate_blocks, 1), (vllm, 2)) for ranks in DEGREES]
any_group = pytest.mark.parametrize("group", GROUPS, ids=str)
any_heads = pytest.mark.parametrize("heads", DEGREES)


def model_of(heads: int) -> Model:
    return Model(2, 2, heads, 5)


def layout_of(model: Model, tokens: int) -> PageLayout:
    """Returns the layout of the pages of a model, as a single rank has it."""
    (whole,) = Group(1, 1, separate_blocks).of(model, tokens)
    return whole.paged.page


def check_store(model: Model, group: Group, tokens: int, some: range) -> None:
    """Stores by all ranks into one page, and asserts that no byte is written twice."""
    state, layout = model.state(1, tokens), layout_of(model, tokens)
    page, times = Page(layout.nbytes, 0xA5), np.zeros(layout.nbytes, np.int64)
    for rank in group.of(model, tokens):
        assert rank.paged.page == layout
        rank.fill(state, rank.slots(group.ranks))
        before = [raw.copy() for raw in rank.cache.raw]
        transfers = rank.paged.storing(rank.slots(group.ranks, tokens=some))
        for transfer in transfers:
            gather(transfer, page.frames)
        times += written(transfers, layout.nbytes)
        assert all(map(np.array_equal, rank.cache.raw, before))
    partly = np.zeros_like(state)
    partly[:, :, :, some.start : some.stop] = 0xFFFF
    wanted = page_bytes(partly, layout) > 0
    assert (times == wanted).all()
    assert np.array_equal(page.bytes, np.where(wanted, page_bytes(state, layout), 0xA5))


def load_all(model: Model, group: Group, tokens: int, page: Page, some: range) -> None:
    """Asserts that each rank loads exactly its heads and layers of these tokens."""
    for rank in group.of(model, tokens):
        slots = rank.slots(group.ranks + 100, tokens=some)
        scatter(rank.paged.loading(slots), page.frames)
        assert rank.wrong(model.state(1, tokens), slots) == 0


def check_load(model: Model, group: Group, tokens: int, some: range) -> None:
    layout = layout_of(model, tokens)
    page, content = Page(layout.nbytes, 0), page_bytes(model.state(1, tokens), layout)
    page.put(content)
    load_all(model, group, tokens, page, some)
    assert np.array_equal(page.bytes, content)


@any_group
@any_heads
@pytest.mark.parametrize("tokens", [5, 12])
def test_all_ranks_write_the_page_of_the_whole_model(heads: int, group: Group, tokens: int) -> None:
    check_store(model_of(heads), group, tokens, range(tokens))


@any_group
@any_heads
def test_all_ranks_load_their_share(heads: int, group: Group) -> None:
    check_load(model_of(heads), group, 7, range(7))


@any_heads
def test_a_page_of_one_group_is_a_page_of_every_other(heads: int) -> None:
    """Each group loads the pages of each other group, because their bytes are the same."""
    model = model_of(heads)
    for group in GROUPS:
        page = Page(layout_of(model, 7).nbytes, 0)
        for rank in group.of(model, 7):
            slots = rank.slots(group.ranks)
            rank.fill(model.state(1, 7), slots)
            for transfer in rank.paged.storing(slots):
                gather(transfer, page.frames)
        for other in GROUPS:
            load_all(model, other, 7, page, range(7))


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(GROUPS), st.sampled_from(DEGREES), st.integers(1, 13), st.data())
def test_parts_of_pages_can_be_stored_and_loaded(group: Group, heads: int, tokens: int, data: st.DataObject) -> None:
    some = range(*sorted(data.draw(st.tuples(*[st.integers(0, tokens)] * 2))))
    check_store(model_of(heads), group, tokens, some)
    check_load(model_of(heads), group, tokens, some)


@pytest.mark.parametrize("ranks", DEGREES)
@pytest.mark.parametrize("tokens", [1, 5, 12])
def test_ranks_of_a_latent_share_its_tokens(ranks: int, tokens: int) -> None:
    model, group = Model(2, 1, 1, 36), Group(ranks, 2, latents)
    check_store(model, group, tokens, range(tokens))
    check_load(model, group, tokens, range(tokens))
    stored = [copy.nbytes for rank in group.of(model, tokens) for copy in rank.paged.storing(rank.slots(0))]
    assert max(stored) - min(stored) <= 72
    assert sum(stored) == model.state(1, tokens).nbytes


def test_all_ranks_cover_the_planes_and_nothing_else() -> None:
    """The planes have 30 bytes per head and token, so that there are gaps between them."""
    state, layout = model_of(1).state(1, 1), layout_of(model_of(1), 1)
    assert (page_bytes(np.full_like(state, 0xFFFF), layout) > 0).sum() == state.nbytes < layout.nbytes


def test_planes_that_are_shared_differently() -> None:
    """Heads of K and V for each rank, and one latent for all ranks: two copies."""
    kv = engine_layouts.separate_blocks(*([np.ones((9, 3, 2, 4), np.uint8)] for _ in range(2)))
    cache = joined(kv, engine_layouts.latents([np.ones((9, 3, 10), np.uint8)]))
    page_layout = PageLayout.of_model(cache, 6, {"k": 8, "v": 8}, 1)
    slots = slot_map([4, 2], 1, 6, 3)
    times = np.zeros(page_layout.nbytes, np.int64)
    for rank in range(4):
        transfers = PagedCache(cache, page_layout, Shard(rank, 4)).storing(slots)
        assert [list(transfer.planes["width"]) for transfer in transfers] == [[4, 4], [10]]
        times += written(transfers, page_layout.nbytes)
    k, v, latent = page_layout.offsets[0]
    wanted = np.zeros(page_layout.nbytes, np.int64)
    for begin, count in ((k, 8 * 6 * 4), (v, 8 * 6 * 4), (latent, 6 * 10)):
        wanted[begin : begin + count] = 1
    assert times.tolist() == wanted.tolist()
