"""Planes of a cache, and caches that copies cannot address."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("array", "stride"),
    [
        (np.zeros((2, 2, 2, 8), np.float16)[..., ::2], 4),
        (np.zeros((2, 2, 8, 2), np.float16).swapaxes(2, 3), 4),
        (np.zeros((2, 2, 2, 8), np.float16)[..., ::-1], -2),
    ],
)
def test_rows_that_are_not_contiguous(array: Any, stride: int) -> None:
    with pytest.raises(
        LayoutError, match=f"layer 3, v: element stride of {stride} bytes: the last axis must be contig"
    ):
        plane_of(view_of(array), 3, "v")


def test_rows_of_one_element_have_no_stride() -> None:
    assert plane_of(view_of(np.zeros((2, 2, 2, 8), np.float16)[..., ::8]), 0, "scale").width == 2


@pytest.mark.parametrize("axes", [0, 1, 3, 5])
def test_another_number_of_axes_is_rejected(axes: int) -> None:
    with pytest.raises(
        LayoutError, match=f"layer 0, k: expected the axes blocks, tokens, heads, elements, got {axes} axes"
    ):
        plane_of(view(*[2] * axes), 0, "k")


@pytest.mark.parametrize("axis", range(4))
def test_an_empty_axis_is_rejected(axis: int) -> None:
    shape = [2, 2, 2, 2]
    shape[axis] = 0
    blocks, tokens, heads, elements = shape
    sizes = f"{blocks} blocks of {tokens} tokens, {heads} heads of {elements} elements"
    with pytest.raises(LayoutError, match=f"layer 0, k is empty: {sizes}"):
        plane_of(view(*shape), 0, "k")


@pytest.mark.parametrize("wrong", range(4))
def test_an_empty_plane_is_rejected(wrong: int) -> None:
    counts = [2, 2, 2, 2]
    counts[wrong] = 0
    with pytest.raises(LayoutError, match="a plane needs at least one block, token, head and byte"):
        plane(64, 64, 16, 4, counts=(counts[0], counts[1], counts[2]), width=counts[3])


@pytest.mark.parametrize(("axis", "name"), [(0, "block"), (1, "token"), (2, "head")])
@pytest.mark.parametrize("stride", [0, 1, -64])
def test_overlapping_rows_are_rejected(axis: int, name: str, stride: int) -> None:
    """Expanded tensors, overlapping views, and views with negative strides."""
    strides = [64, 16, 4]
    strides[axis] = stride
    with pytest.raises(LayoutError, match=f"layer 0, k: {name} stride of {stride} bytes, but each step covers 2"):
        plane(64, *strides)


def test_overlapping_blocks_are_rejected() -> None:
    assert plane(64, 8, 4, 2).end == 64 + 16
    with pytest.raises(LayoutError, match="block stride of 7 bytes, but each step covers 8"):
        plane(64, 7, 4, 2)


def test_an_axis_of_one_may_have_any_stride() -> None:
    for stride in (0, 1, -5, 1 << 40):
        assert plane(64, 4, stride, 2, counts=(2, 1, 2)).token_stride == stride


# ---- caches


def test_a_cache_has_the_sizes_of_its_tensors() -> None:
    k, v, scale = view(5, 3, 2, 8), view(5, 3, 2, 4), view(5, 3, 2, 1, dtype=np.float32)
    cache = cache_of([[("k", k), ("v", v)], [("k", scale)]])
    assert (cache.layers, cache.blocks, cache.block_tokens, cache.device) == (2, 5, 3, "cpu")
    assert [[plane.kind for plane in planes] for planes in cache.by_layer] == [["k", "v"], ["k"]]
    assert cache.owners == (k.owner, v.owner, scale.owner)
    assert repr(cache) == "<CacheLayout 2 layers of k, v; 5 blocks of 3 on cpu>"


def test_a_cache_without_tensors_is_rejected() -> None:
    nothings: list[list[Any]] = [[], [[]]]
    for nothing in nothings:
        with pytest.raises(LayoutError, match="a cache needs at least one tensor"):
            cache_of(nothing)
    with pytest.raises(LayoutError, match="from layer 0 on, without a gap"):
        CacheLayout((), "cpu")


def test_layers_out_of_order_are_rejected() -> None:
    one = plane_of(view(2, 2, 2, 2), 0, "k")
    for layers in ((1,), (0, 2), (1, 0), (0, 1, 0)):
        planes = tuple(plane_of(view(2, 2, 2, 2), layer, f"k{at}") for at, layer in enumerate(layers))
        with pytest.raises(LayoutError, match="ordered by layer, from layer 0 on, without a gap"):
            CacheLayout(planes, "cpu")
    with pytest.raises(LayoutError, match="at least one tensor in each layer"):
        cache_of([[], [("k", view(2, 2, 2, 2))]])
    assert CacheLayout((one,), "cpu").layers == 1


def test_tensors_on_several_devices_are_rejected() -> None:
    here, there = view(2, 2, 2, 2), msgspec.structs.replace(view(2, 2, 2, 2), device="cuda:1")
    with pytest.raises(LayoutError, match="layer 1, k is on cuda:1, but the cache is on cpu"):
        cache_of([[("k", here)], [("k", there)]])


@pytest.mark.parametrize("shape", [(4, 2, 2, 2), (2, 4, 2, 2)])
def test_planes_with_other_blocks_are_rejected(shape: tuple[int, ...]) -> None:
    why = rf"layer 1, k: {shape[0]} blocks of {shape[1]} tokens, but layer 0, k has 2 of 2"
    with pytest.raises(LayoutError, match=why):
        cache_of([[("k", view(2, 2, 2, 2))], [("k", view(*shape))]])


def test_two_planes_of_one_kind_are_rejected() -> None:
    with pytest.raises(LayoutError, match="layer 0, k: a layer has 2 planes of this kind"):
        cache_of([[("k", view(2, 2, 2, 2)), ("k", view(2, 2, 2, 2))]])


def test_joined_caches_have_all_layers() -> None:
    kv = cache_of([[("k", view(2, 2, 2, 2)), ("v", view(2, 2, 2, 2))] for _ in range(2)])
    more = cache_of([[("scale", view(2, 2, 2, 1))] for _ in range(2)])
    both = joined(kv, more)
    assert [[plane.kind for plane in planes] for planes in both.by_layer] == [["k", "v", "scale"]] * 2
    assert both.owners == (*kv.owners, *more.owners)
    assert joined(kv).planes == kv.planes


def test_caches_that_do_not_match_cannot_be_joined() -> None:
    one = cache_of([[("k", view(2, 2, 2, 2))]])
    two = cache_of([[("v", view(2, 2, 2, 2))] for _ in range(2)])
    other = cache_of([[("v", view(3, 2, 2, 2))]])
    elsewhere = CacheLayout(two.planes[:1], "cuda:0")
    with pytest.raises(LayoutError, match="cannot join caches with different layers or devices: none given"):
        joined()
    for wrong in (two, elsewhere):
        with pytest.raises(
            LayoutError,
            match="cannot join caches with different layers or devices: <CacheLayout 1 layers of k; ",
        ):
            joined(one, wrong)
    with pytest.raises(LayoutError, match="layer 0, v: 3 blocks of 2 tokens, but layer 0, k has 2 of 2"):
        joined(one, other)
    with pytest.raises(LayoutError, match="layer 0, k: a layer has 2 planes of this kind"):
        joined(one, one)


# ---- overlapping planes


def test_one_tensor_for_two_layers_is_rejected() -> None:
    array = np.zeros((2, 2, 2, 2))
    with pytest.raises(LayoutError, match="layer 0, k and layer 1, k overlap in memory"):
        cache_of([[("k", view_of(array))], [("k", view_of(array))]])


def test_k_and_v_that_share_an_element() -> None:
    array = np.zeros((3, 2, 2, 9), np.int8)
    with pytest.raises(LayoutError, match="layer 0, k and layer 0, v overlap in memory"):
        cache_of([[("k", view_of(array[..., :5])), ("v", view_of(array[..., 4:]))]])
    assert cache_of([[("k", view_of(array[..., :5])), ("v", view_of(array[..., 5:]))]]).layers == 1


def test_overlapping_layers_are_rejected() -> None:
    array = np.zeros((3, 2, 2, 2, 4), np.int8)
    layers = [[("k", view_of(array[:, 0]))], [("k", view_of(array[:, 1]))]]
    assert cache_of(layers).layers == 2
    wrong = np.lib.stride_tricks.as_strided(array[:, 0], (3, 2, 2, 4), (48, 8, 4, 1))
    with pytest.raises(LayoutError, match=r"layer [01], k and layer 2, k overlap in memory"):
        cache_of([*layers, [("k", view_of(wrong[..., 1:]))]])


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


def test_strides_that_overflow_are_rejected() -> None:
    view = View(4096, (2, 2, 2, 4), (1 << 70, 64, 16, 4), 4, "float32", "cpu", None)
    with pytest.raises(LayoutError, match="strides have at most 62 bits"):
        plane_of(view, 0, "k")


def test_a_layer_without_a_tensor_is_rejected() -> None:
    view = View(4096, (2, 2, 2, 4), (128, 64, 16, 4), 4, "float32", "cpu", None)
    with pytest.raises(LayoutError, match="at least one tensor in each layer"):
        cache_of([[("k", view)], []])
