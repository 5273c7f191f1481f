"""Planes of a cache, and caches that copies cannot address."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetier.kernels.layout.cache_layout import CacheLayout, LayoutError, Plane, cache_of, joined, plane_of
from pagetier.kernels.layout.tensors import View, view_of


def view(*shape: int, dtype: Any = np.float16) -> View:
    return view_of(np.zeros(shape, dtype))


def plane(
    address: int, *strides: int, counts: tuple[int, int, int] = (2, 2, 2), width: int = 2, kind: str = "k"
) -> Plane:
    """Returns the strides of blocks, tokens, heads."""
    return Plane(0, kind, "uint8", address, *counts, width, *strides)


def test_a_plane_has_the_strides_of_its_view() -> None:
    array = np.zeros((5, 3, 4, 8), np.float32)
    its = plane_of(view_of(array.transpose(0, 2, 1, 3)), 7, "v")
    assert (its.layer, its.kind, its.dtype, its.address) == (7, "v", "float32", array.ctypes.data)
    assert (its.blocks, its.tokens, its.heads, its.width) == (5, 4, 3, 32)
    assert (its.block_stride, its.token_stride, its.head_stride) == (384, 32, 128)
    assert its.end == array.ctypes.data + array.nbytes
    assert str(its) == "layer 7, v"


def test_rows_of_one_element_have_no_stride() -> None:
    assert plane_of(view_of(np.zeros((2, 2, 2, 8), np.float16)[..., ::8]), 0, "scale").width == 2


def test_blocks_may_touch() -> None:
    assert plane(64, 8, 4, 2).end == 64 + 16


def test_an_axis_of_one_may_have_any_stride() -> None:
    for stride in (0, 1, -5, 1 << 40):
        assert plane(64, 4, stride, 2, counts=(2, 1, 2)).token_stride == stride


HALVES = np.zeros((2, 2, 2, 8), np.float16)
SWAPPED = np.zeros((2, 2, 8, 2), np.float16).swapaxes(2, 3)
HUGE = View(4096, (2, 2, 2, 4), (1 << 70, 64, 16, 4), 4, "float32", "cpu", None)
REJECTED_PLANES: list[tuple[Callable[[], object], str]] = [
    *(
        (partial(plane_of, view_of(array), 3, "v"), f"layer 3, v: element stride of {stride} bytes: the last axis must")
        for array, stride in ((HALVES[..., ::2], 4), (SWAPPED, 4), (HALVES[..., ::-1], -2))
    ),
    *(
        (partial(plane_of, view(*[2] * axes), 0, "k"), f"axes blocks, tokens, heads, elements, got {axes} axes")
        for axes in (0, 1, 3, 5)
    ),
    *(
        (
            partial(plane_of, view(*shape), 0, "k"),
            "layer 0, k is empty: {} blocks of {} tokens, {} heads of {} elements".format(*shape),
        )
        for shape in ((0, 2, 2, 2), (2, 0, 2, 2), (2, 2, 0, 2), (2, 2, 2, 0))
    ),
    *(
        (partial(plane, 64, 64, 16, 4, counts=counts, width=width), "a plane needs at least one block, token, head and")
        for counts, width in (((0, 2, 2), 2), ((2, 0, 2), 2), ((2, 2, 0), 2), ((2, 2, 2), 0))
    ),
    *(  # expanded tensors, overlapping views, and views with negative strides
        (
            partial(plane, 64, *(stride if at == axis else usual for at, usual in enumerate((64, 16, 4)))),
            f"layer 0, k: {name} stride of {stride} bytes, but each step covers 2",
        )
        for axis, name in enumerate(("block", "token", "head"))
        for stride in (0, 1, -64)
    ),
    (partial(plane, 64, 7, 4, 2), "block stride of 7 bytes, but each step covers 8"),
    (partial(plane_of, HUGE, 0, "k"), "strides have at most 62 bits"),
]


@pytest.mark.parametrize(("make", "why"), REJECTED_PLANES)
def test_a_plane_that_copies_cannot_address_is_rejected(make: Callable[[], object], why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        make()


# ---- caches


def test_a_cache_has_the_sizes_of_its_tensors() -> None:
    k, v, scale = view(5, 3, 2, 8), view(5, 3, 2, 4), view(5, 3, 2, 1, dtype=np.float32)
    cache = cache_of([[("k", k), ("v", v)], [("k", scale)]])
    assert (cache.layers, cache.blocks, cache.block_tokens, cache.device) == (2, 5, 3, "cpu")
    assert [[plane.kind for plane in planes] for planes in cache.by_layer] == [["k", "v"], ["k"]]
    assert cache.owners == (k.owner, v.owner, scale.owner)
    assert repr(cache) == "<CacheLayout 2 layers of k, v; 5 blocks of 3 on cpu>"


def test_joined_caches_have_all_layers() -> None:
    kv = cache_of([[("k", view(2, 2, 2, 2)), ("v", view(2, 2, 2, 2))] for _ in range(2)])
    more = cache_of([[("scale", view(2, 2, 2, 1))] for _ in range(2)])
    both = joined(kv, more)
    assert [[plane.kind for plane in planes] for planes in both.by_layer] == [["k", "v", "scale"]] * 2
    assert both.owners == (*kv.owners, *more.owners)
    assert joined(kv).planes == kv.planes


def k_view(array: Any = None) -> tuple[str, View]:
    return "k", view(2, 2, 2, 2) if array is None else view_of(array)


def layers_numbered(*layers: int) -> CacheLayout:
    planes = (plane_of(view(2, 2, 2, 2), layer, f"k{at}") for at, layer in enumerate(layers))
    return CacheLayout(tuple(planes), "cpu")


ONE, TWO = cache_of([[k_view()]]), cache_of([[("v", view(2, 2, 2, 2))] for _ in range(2)])
TWO_LAYERS = np.zeros((3, 2, 2, 2, 4), np.int8)
OVERLAPPING = np.lib.stride_tricks.as_strided(TWO_LAYERS[:, 0], (3, 2, 2, 4), (48, 8, 4, 1))[..., 1:]
NINE, SAME = np.zeros((3, 2, 2, 9), np.int8), np.zeros((2, 2, 2, 2))
ON_GPU = "k", msgspec.structs.replace(view(2, 2, 2, 2), device="cuda:1")
UNLIKE = "cannot join caches with different layers or devices: "
REJECTED_CACHES: list[tuple[Callable[[], object], str]] = [
    (lambda: cache_of([]), "a cache needs at least one tensor"),
    (lambda: cache_of([[]]), "a cache needs at least one tensor"),
    (lambda: cache_of([[], [k_view()]]), "at least one tensor in each layer"),
    (lambda: cache_of([[k_view()], []]), "at least one tensor in each layer"),
    (lambda: CacheLayout((), "cpu"), "from layer 0 on, without a gap"),
    *(
        (partial(layers_numbered, *layers), "ordered by layer, from layer 0 on, without a gap")
        for layers in ((1,), (0, 2), (1, 0), (0, 1, 0))
    ),
    (lambda: cache_of([[k_view()], [ON_GPU]]), "layer 1, k is on cuda:1, but the cache is on cpu"),
    *(
        (
            partial(cache_of, [[k_view()], [("k", view(*shape))]]),
            f"layer 1, k: {shape[0]} blocks of {shape[1]} tokens, but layer 0, k has 2 of 2",
        )
        for shape in ((4, 2, 2, 2), (2, 4, 2, 2))
    ),
    (lambda: cache_of([[k_view(), k_view()]]), "layer 0, k: a layer has 2 planes of this kind"),
    (joined, f"{UNLIKE}none given"),
    (lambda: joined(ONE, TWO), f"{UNLIKE}<CacheLayout 1 layers of k; "),
    (lambda: joined(ONE, CacheLayout(TWO.planes[:1], "cuda:0")), f"{UNLIKE}<CacheLayout 1 layers of k; "),
    (
        lambda: joined(ONE, cache_of([[("v", view(3, 2, 2, 2))]])),
        "layer 0, v: 3 blocks of 2 tokens, but layer 0, k has 2",
    ),
    (lambda: joined(ONE, ONE), "layer 0, k: a layer has 2 planes of this kind"),
    (lambda: cache_of([[k_view(SAME)], [k_view(SAME[1:])]]), "layer 1, k: 1 blocks of 2 tokens, but layer 0, k has 2"),
    (
        lambda: cache_of([[k_view(NINE[..., :5]), ("v", view_of(NINE[..., 4:]))]]),
        "layer 0, k and layer 0, v overlap in memory",
    ),
    (
        lambda: cache_of([[k_view(TWO_LAYERS[:, 0])], [k_view(TWO_LAYERS[:, 1])], [k_view(OVERLAPPING)]]),
        r"layer [01], k and layer 2, k overlap in memory",
    ),
]


@pytest.mark.parametrize(("make", "why"), REJECTED_CACHES)
def test_a_cache_that_copies_cannot_address_is_rejected(make: Callable[[], object], why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        make()


# ---- overlapping planes


def test_planes_may_be_interleaved() -> None:
    assert cache_of([[k_view(NINE[..., :5]), ("v", view_of(NINE[..., 5:]))]]).layers == 1
    assert cache_of([[k_view(TWO_LAYERS[:, 0])], [k_view(TWO_LAYERS[:, 1])]]).layers == 2


few = st.integers(1, 3)


@st.composite
def planes(draw: Any, kind: str, blocks: int, tokens: int) -> Plane:
    """Draws planes with axes in any order, and gaps between rows, heads, tokens or blocks."""
    counts, width, strides = (blocks, tokens, draw(few)), draw(few), [0, 0, 0]
    reach = width
    for axis in draw(st.permutations(range(3))):
        strides[axis] = reach + draw(st.sampled_from([0, 0, 1, 2, 3, 6]))
        reach += strides[axis] * (counts[axis] - 1)
    return plane(draw(st.integers(64, 100)), *strides, counts=counts, width=width, kind=kind)


pairs = st.tuples(few, few).flatmap(lambda counts: st.tuples(planes("k", *counts), planes("v", *counts)))


def bytes_of(one: Plane) -> set[int]:
    return {
        one.address + block * one.block_stride + token * one.token_stride + head * one.head_stride + byte
        for block in range(one.blocks)
        for token in range(one.tokens)
        for head in range(one.heads)
        for byte in range(one.width)
    }


@settings(deadline=None, max_examples=300)
@given(pairs)
def test_only_planes_with_a_byte_in_common_overlap(pair: tuple[Plane, Plane]) -> None:
    for one in pair:
        assert len(bytes_of(one)) == one.blocks * one.tokens * one.heads * one.width
        assert one.end == max(bytes_of(one)) + 1
    if bytes_of(pair[0]) & bytes_of(pair[1]):
        with pytest.raises(LayoutError, match="overlap in memory"):
            CacheLayout(pair, "cpu")
    else:
        assert CacheLayout(pair, "cpu").layers == 1


def test_overlaps_in_a_large_model_are_found_quickly() -> None:
    """126 layers with interleaved blocks: comparing all pairs row by row would take too long."""
    array = np.zeros((2, 126, 16, 8, 2), np.int8)
    layers = [
        np.lib.stride_tricks.as_strided(array[:, at], (100_000, 16, 8, 2), array[:, at].strides) for at in range(126)
    ]
    cache = cache_of([[("k", view_of(one[..., :1])), ("v", view_of(one[..., 1:]))] for one in layers])
    assert len(cache.planes) == 252
