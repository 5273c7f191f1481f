"""Any number of ranks write one page and read it, byte for byte."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from page_of_ranks import Group, Model, Page, joint_memory, latent_memory, model_of, separate_memory, slots_of, written
from pagetier.kernels.host.copy import gather, scatter
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import joined
from pagetier.kernels.layout.page_layout import PageLayout, Shard
from pagetier.kernels.layout.transfer import PagedCache

DEGREES = (1, 2, 4, 8)

GROUPS = [Group(ranks, stages, make) for make, stages in ((separate_memory, 1), (joint_memory, 2)) for ranks in DEGREES]
any_group = pytest.mark.parametrize("group", GROUPS, ids=str)
any_heads = pytest.mark.parametrize("heads", DEGREES)


def check_store(model: Model, group: Group, tokens: int, some: range) -> None:
    """Stores by all ranks into one page, and asserts that no byte is written twice."""
    table, slots = slots_of(group.ranks, tokens, some)
    page, times = Page(model.page_layout.nbytes, 0xA5), np.zeros(model.page_layout.nbytes, np.int64)
    for rank in group.of(model, tokens):
        rank.write(model, table, range(tokens))
        before = [memory.copy() for memory in rank.memory]
        transfers = rank.paged.storing(slots)
        for transfer in transfers:
            gather(transfer, page.frames)
        times += written(transfers, model.page_layout.nbytes)
        assert all(map(np.array_equal, rank.memory, before))
    partly = np.zeros_like(model.state)
    partly[:, :, :, some.start : some.stop] = 0xFFFF
    wanted = msgspec.structs.replace(model, state=partly).page > 0
    assert (times == wanted).all()
    assert np.array_equal(page.bytes, np.where(wanted, model.page, 0xA5))


def check_load(model: Model, group: Group, tokens: int, some: range) -> None:
    """Asserts that each rank has exactly its heads and layers of these tokens."""
    table, slots = slots_of(group.ranks + 100, tokens, some)
    page = Page(model.page_layout.nbytes, 0)
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
    """Each group loads the pages of each other group, because their bytes are the same."""
    model, pages = model_of(heads, 7), []
    for group in GROUPS:
        table, slots = slots_of(group.ranks, 7)
        page = Page(model.page_layout.nbytes, 0)
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
def test_parts_of_pages_can_be_stored_and_loaded(group: Group, heads: int, tokens: int, data: st.DataObject) -> None:
    some = range(*sorted(data.draw(st.tuples(*[st.integers(0, tokens)] * 2))))
    check_store(model_of(heads, tokens), group, tokens, some)
    check_load(model_of(heads, tokens), group, tokens, some)


@pytest.mark.parametrize("ranks", DEGREES)
@pytest.mark.parametrize("tokens", [1, 5, 12])
def test_ranks_of_a_latent_share_its_tokens(ranks: int, tokens: int) -> None:
    model, group = model_of(1, tokens, kinds=1, width=36), Group(ranks, 2, latent_memory)
    check_store(model, group, tokens, range(tokens))
    check_load(model, group, tokens, range(tokens))
    stored = [
        transfer.nbytes for rank in group.of(model, tokens) for transfer in rank.paged.storing(slots_of(0, tokens)[1])
    ]
    assert max(stored) - min(stored) <= 72
    assert sum(stored) == model.state.nbytes


def test_all_ranks_cover_the_planes_and_nothing_else() -> None:
    """The planes have 30 bytes per head and token, so that there are gaps between them."""
    model = model_of(1, 1, width=5)
    assert model.covered.sum() == model.state.nbytes < model.page_layout.nbytes


def test_planes_that_are_shared_differently() -> None:
    """Heads of K and V for each rank, and one latent for all ranks: two copies."""
    kv = engine_layouts.separate_blocks(*([np.ones((9, 3, 2, 4), np.uint8)] for _ in range(2)))
    cache = joined(kv, engine_layouts.latents([np.ones((9, 3, 10), np.uint8)]))
    page_layout = PageLayout.of_model(cache, 6, {"k": 8, "v": 8}, 1)
    _, slots = slots_of(0, 6)
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
