"""The layout of a page's bytes, its name, and the part of a page that a rank has."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import CacheLayout, LayoutError, joined
from pagetier.kernels.layout.page_layout import Heads, PageLayout, Rows, Shard

rows = st.builds(
    Rows,
    kind=st.sampled_from(["k", "v", "latent"]),
    dtype=st.sampled_from(["float16", "bfloat16", "int8"]),
    heads=st.integers(1, 3),
    width=st.integers(1, 3),
)
layers = st.lists(st.lists(rows, min_size=1, max_size=2).map(tuple), min_size=1, max_size=2).map(tuple)
page_layouts = st.builds(PageLayout, tokens=st.integers(1, 2), layers=layers)


def kv(heads: int = 2, layers: int = 2, width: int = 3, dtype: Any = np.float16) -> CacheLayout:
    return engine_layouts.kv_first([np.zeros((2, 4, 3, heads, width), dtype) for _ in range(layers)])


@settings(deadline=None)
@given(page_layouts)
def test_planes_lie_in_order_at_multiples_of_16(page_layout: PageLayout) -> None:
    planes = [rows for layer in page_layout.layers for rows in layer]
    begins = [begin for layer in page_layout.offsets for begin in layer]
    ends = [begin + row.heads * page_layout.tokens * row.width for begin, row in zip(begins, planes, strict=True)]
    assert begins[0] == 0
    assert page_layout.nbytes == ends[-1]
    for end, begin in zip(ends, begins[1:], strict=False):
        assert begin % 16 == 0
        assert end <= begin < end + 16
    assert [len(layer) for layer in page_layout.offsets] == [len(layer) for layer in page_layout.layers]


@settings(deadline=None)
@given(page_layouts, page_layouts)
def test_two_layouts_have_the_same_name_only_if_they_are_equal(one: PageLayout, other: PageLayout) -> None:
    assert (one.layout == other.layout) == (one == other)


@settings(deadline=None)
@given(page_layouts, st.data())
def test_everything_is_in_the_name(page_layout: PageLayout, data: st.DataObject) -> None:
    layer = data.draw(st.integers(0, len(page_layout.layers) - 1))
    plane = data.draw(st.integers(0, len(page_layout.layers[layer]) - 1))
    row = page_layout.layers[layer][plane]
    changes: list[dict[str, Any]] = [{"kind": "o"}, {"dtype": "o"}, {"heads": row.heads + 1}, {"width": row.width + 1}]
    change = data.draw(st.sampled_from(changes))
    planes = [list(its) for its in page_layout.layers]
    planes[layer][plane] = msgspec.structs.replace(row, **change)
    changed = [
        PageLayout(page_layout.tokens, tuple(map(tuple, planes))),
        PageLayout(page_layout.tokens + 1, page_layout.layers),
        PageLayout(page_layout.tokens, (*page_layout.layers, page_layout.layers[0])),
        PageLayout(page_layout.tokens, ((*page_layout.layers[0], row), *page_layout.layers[1:])),
    ]
    assert len({page_layout.layout, *(one.layout for one in changed)}) == 5


def test_layers_are_not_planes() -> None:
    k, v = Rows("k", "int8", 1, 16), Rows("v", "int8", 1, 16)
    together, apart = PageLayout(1, ((k, v),)), PageLayout(1, ((k,), (v,)))
    assert together.nbytes == apart.nbytes
    assert together.layout != apart.layout


def test_the_name_of_a_layout_never_changes() -> None:
    """Pages on disk are found by the name. If this test fails, all stored pages become unreachable."""
    page_layout = PageLayout.of(kv(), 16)
    assert page_layout.offsets == ((0, 192), (384, 576))
    assert page_layout.layout == "page-1-c1ce471212c8de71776b77b64385362f"


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("stages", [1, 2])
def test_all_ranks_have_one_order(ranks: int, stages: int) -> None:
    whole = PageLayout.of(kv(heads=4, layers=2), 5)
    assert PageLayout.of_model(kv(max(1, 4 // ranks), 2 // stages), 5, 4, 2) == whole
    assert PageLayout.of_model(kv(max(1, 4 // ranks), 2 // stages), 5, 4, 2).layout == whole.layout


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_kind_may_have_its_own_number_of_heads(ranks: int) -> None:
    """A latent has one head for any number of ranks."""
    latent = engine_layouts.latents([np.zeros((4, 3, 8), np.float32)] * 1)
    model = PageLayout.of_model(joined(kv(4 // ranks, 1), latent), 5, {"k": 4, "v": 4}, 1)
    assert [(row.kind, row.heads) for row in model.layers[0]] == [("k", 4), ("v", 4), ("latent", 1)]


def test_heads_of_an_unknown_kind_are_rejected() -> None:
    with pytest.raises(LayoutError, match="heads are given for key, value, but the cache has no plane of that kind"):
        PageLayout.of_model(kv(), 5, {"key": 4, "value": 4}, 2)


def test_layers_that_differ_are_rejected() -> None:
    one, other = (np.zeros((2, 4, 3, 2, width), np.int8) for width in (3, 4))
    cache = engine_layouts.kv_first([one, other])
    assert PageLayout.of_model(cache, 5, 2, 2) == PageLayout.of(cache, 5)
    with pytest.raises(LayoutError, match="the layers differ"):
        PageLayout.of_model(cache, 5, 2, 4)


@pytest.mark.parametrize(
    ("tokens", "planes"),
    [
        (0, ((Rows("k", "int8", 1, 1),),)),
        (-1, ((Rows("k", "int8", 1, 1),),)),
        (1, ()),
        (1, ((),)),
        (1, ((Rows("k", "int8", 0, 1),),)),
        (1, ((Rows("k", "int8", 1, 0),),)),
    ],
)
def test_an_empty_page_is_rejected(tokens: int, planes: Any) -> None:
    with pytest.raises(LayoutError, match="at least one token, and a plane with at least one head and byte"):
        PageLayout(tokens, planes)


def test_a_page_of_2_gib_is_rejected() -> None:
    assert PageLayout(1, ((Rows("k", "int8", 1, 2**31 - 1),),)).nbytes == 2**31 - 1
    with pytest.raises(LayoutError, match="a page of 2147483648 bytes is too large: the limit is 2147483647"):
        PageLayout(2, ((Rows("k", "int8", 1024, 2**20),),))


def test_repr_is_a_status_line() -> None:
    assert repr(PageLayout(4, ((Rows("k", "int8", 1, 2**18),),))) == "<PageLayout 4 tokens, 1 layers, 1.0 MiB>"


# ---- ranks


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 16])
def test_ranks_have_all_heads_between_them(heads: int, ranks: int) -> None:
    """Each rank has the same number of heads, in order; if ranks share a head, each has a replica."""
    if heads % ranks and ranks % heads:
        with pytest.raises(LayoutError, match=f"{heads} heads cannot be divided among {ranks} ranks"):
            Shard(ranks - 1, ranks).heads(heads)
        return
    shares = [Shard(rank, ranks).heads(heads) for rank in range(ranks)]
    had = [(head, share.replica) for share in shares for head in range(share.first, share.first + share.count)]
    replicas = max(1, ranks // heads)
    assert had == [(head, replica) for head in range(heads) for replica in range(replicas)]
    assert {(share.count, share.replicas) for share in shares} == {(max(1, heads // ranks), replicas)}


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 12))
def test_replicas_share_the_tokens_evenly(tokens: int, replicas: int) -> None:
    shares = [Heads(0, 1, replica, replicas).tokens(tokens) for replica in range(replicas)]
    assert [token for share in shares for token in share] == list(range(tokens))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_parts_are_counted_over_stages_and_ranks() -> None:
    parts = [Shard(rank, 3, stage, (5, 7)) for stage in range(2) for rank in range(3)]
    assert [shard.part for shard in parts] == list(range(6))
    assert {shard.parts for shard in parts} == {6}
    assert (Shard().part, Shard().parts) == (0, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": 2, "ranks": 2},
        {"rank": -1},
        {"ranks": 0},
        {"stage": 1},
        {"stage": -1},
        {"stages": (4, 0)},
        {"stage": 2, "stages": (1, 1)},
    ],
    ids=str,
)
def test_ranks_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(LayoutError, match="ranks and stages count from 0"):
        Shard(**wrong)


def test_a_division_is_the_same_for_all_ranks_of_an_engine_and_for_no_other() -> None:
    engines = [(1, (2, 2)), (1, (1, 3)), (1, (3, 1)), (2, ()), (2, (2, 2)), (4, ()), (4, (2, 2)), (8, ())]
    divisions = [
        {Shard(rank, ranks, stage, stages).division for rank in range(ranks) for stage in range(len(stages) or 1)}
        for ranks, stages in engines
    ]
    assert all(len(of_engine) == 1 for of_engine in divisions)
    assert len(set.union(*divisions)) == len(engines)
    assert Shard().division == Shard(stages=(7,)).division == 0
    assert Shard(1, 2, stages=(7,)).division == Shard(0, 2).division
