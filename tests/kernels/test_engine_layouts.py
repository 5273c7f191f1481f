"""The named cache layouts: the place of K and V of each layer, and rejected shapes.

See test_host_copy for the copies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import CacheLayout, LayoutError

SHAPES: dict[str, tuple[Callable[..., CacheLayout], tuple[int, ...]]] = {
    "vllm": (engine_layouts.vllm, (5, 2, 3, 8)),
    "kv_first": (engine_layouts.kv_first, (2, 5, 3, 2, 4)),
    "kv_second": (engine_layouts.kv_second, (5, 2, 3, 2, 4)),
    "latents": (engine_layouts.latents, (5, 3, 8)),
}
PAIRS: dict[str, tuple[Callable[..., CacheLayout], tuple[int, ...]]] = {
    "separate_slots": (engine_layouts.separate_slots, (5, 2, 4)),
    "separate_blocks": (engine_layouts.separate_blocks, (5, 3, 2, 4)),
    "scales": (engine_layouts.scales, (5, 3, 2)),
}


def facts(cache: CacheLayout) -> set[tuple[int, int, int, int]]:
    return {(plane.blocks, plane.tokens, plane.heads, plane.width) for plane in cache.planes}


def kinds(cache: CacheLayout) -> list[tuple[int, str]]:
    return [(plane.layer, plane.kind) for plane in cache.planes]


def zeroes(*shape: int, count: int = 2) -> list[Any]:
    return [np.zeros(shape, np.float16) for _ in range(count)]


def test_what_the_axes_are() -> None:
    kv = [(layer, kind) for layer in range(2) for kind in ("k", "v")]
    for name, width in (("vllm", 8), ("kv_first", 8), ("kv_second", 8)):
        make, shape = SHAPES[name]
        cache = make(zeroes(*shape))
        assert facts(cache) == {(5, 3, 2, width)}
        assert kinds(cache) == kv
    assert facts(engine_layouts.latents(zeroes(5, 3, 8))) == {(5, 3, 1, 16)}
    assert kinds(engine_layouts.latents(zeroes(5, 3, 8))) == [(0, "latent"), (1, "latent")]
    slots, blocks, scales = (make(zeroes(*shape), zeroes(*shape)) for make, shape in PAIRS.values())
    assert (facts(slots), kinds(slots)) == ({(5, 1, 2, 8)}, kv)
    assert (facts(blocks), kinds(blocks)) == ({(5, 3, 2, 8)}, kv)
    assert (facts(scales), kinds(scales)[:2]) == ({(5, 3, 2, 2)}, [(0, "k scale"), (0, "v scale")])
    tokens = engine_layouts.token_slots(np.zeros((2, 5, 4, 4), np.float16))
    assert (facts(tokens), kinds(tokens)) == ({(5, 1, 2, 8)}, kv)


def test_layers_may_be_in_one_tensor() -> None:
    """A tensor [layers, ...] need not be split into layers."""
    whole = np.zeros((3, 2, 5, 4, 2, 8), np.float16)
    assert engine_layouts.kv_first(whole).planes == engine_layouts.kv_first(list(whole)).planes  # type: ignore[arg-type]


def test_k_and_v_may_have_different_widths() -> None:
    k, v = engine_layouts.vllm(zeroes(5, 2, 3, 8, count=1), k_width=5).planes
    assert (k.kind, k.width, v.kind, v.width) == ("k", 10, "v", 6)
    assert v.address == k.address + 10
    (latent,) = engine_layouts.vllm(zeroes(5, 1, 3, 8, count=1), k_width=8).planes
    assert (latent.kind, latent.width) == ("latent", 16)


def test_states_are_opaque() -> None:
    layers: list[list[Any]] = [[np.zeros((5, 2, 3), np.float32), np.zeros(5, np.int8)], [np.zeros((5, 4), np.float64)]]
    cache = engine_layouts.states(layers)
    assert kinds(cache) == [(0, "state 0"), (0, "state 1"), (1, "state 0")]
    assert [(plane.blocks, plane.tokens, plane.heads, plane.width) for plane in cache.planes] == [
        (5, 1, 1, 24),
        (5, 1, 1, 1),
        (5, 1, 1, 32),
    ]


def test_states_may_have_axes_of_one() -> None:
    state = np.zeros((5, 1, 3, 4), np.int8)
    odd = np.lib.stride_tricks.as_strided(state, (5, 1, 3, 4), (12, 7, 4, 1))
    assert engine_layouts.states([[odd]]).planes == engine_layouts.states([[state]]).planes


# ---- refused


Make = Callable[..., CacheLayout]
SHAPE_EXPECTED = r"layer 1: expected a tensor of shape \[.*\], got \[.*\]"
NO_TENSOR = "a cache needs at least one tensor"
WRONG_LAYERS: list[tuple[Callable[[Make, tuple[int, ...]], object], str]] = [
    (lambda make, shape: make([*zeroes(*shape, count=1), np.zeros(shape[1:])]), SHAPE_EXPECTED),
    (lambda make, shape: make([*zeroes(*shape, count=1), np.zeros((1, *shape))]), SHAPE_EXPECTED),
    (lambda make, _: make([]), NO_TENSOR),
    (lambda make, _: make([b"abc"]), "a cache consists of tensors, not of bytes"),
    (
        lambda make, shape: make([np.zeros((*shape[:-1], 2 * shape[-1]), np.float16)[..., ::2]]),
        r"layer 0, .*: element stride of 4 bytes: the last axis must be contiguous",
    ),
    (
        lambda make, shape: make([np.zeros(shape), np.zeros([6 if size == 5 else size for size in shape])]),
        r"layer 1, .*: 6 blocks of 3 tokens, but layer 0, .* has 5 of 3",
    ),
]


@pytest.mark.parametrize(("wrong", "why"), WRONG_LAYERS)
@pytest.mark.parametrize("name", SHAPES)
def test_wrong_layers_are_rejected(name: str, wrong: Callable[[Make, tuple[int, ...]], object], why: str) -> None:
    with pytest.raises((LayoutError, TypeError), match=why):
        wrong(*SHAPES[name])


@pytest.mark.parametrize("name", PAIRS)
def test_k_and_v_that_do_not_match_are_rejected(name: str) -> None:
    make, shape = PAIRS[name]
    with pytest.raises(LayoutError, match=SHAPE_EXPECTED):
        make(zeroes(*shape), [*zeroes(*shape, count=1), np.zeros((1, *shape))])
    with pytest.raises(LayoutError, match=r"K has 2 layers and V has 1"):
        make(zeroes(*shape), zeroes(*shape, count=1))


TORN = np.zeros((5, 3, 8), np.float16)
REJECTED: list[tuple[Callable[[], object], str]] = [
    *(
        (
            partial(engine_layouts.vllm, zeroes(5, 2, 3, 8), k_width=width),
            f"k_width = {width} is not between 1 and the 8 ",
        )
        for width in (-1, 0, 9)
    ),
    *(
        (partial(engine_layouts.vllm, zeroes(5, 2, 3, width)), f"{width} elements cannot be halved .*: pass k_width")
        for width in (1, 7)
    ),
    (
        lambda: engine_layouts.kv_first(zeroes(3, 5, 3, 2, 4)),
        r"layer 0: axis 0 of shape \[.*\] must be 2, for K and V",
    ),
    (
        lambda: engine_layouts.kv_second(zeroes(5, 1, 3, 2, 4)),
        r"layer 0: axis 1 of shape \[.*\] must be 2, for K and V",
    ),
    (lambda: engine_layouts.token_slots(np.zeros((2, 5, 3, 4))), "3 heads: K and V have the same number of heads"),
    (lambda: engine_layouts.token_slots(np.zeros((0, 5, 2, 4))), NO_TENSOR),
    (
        lambda: engine_layouts.token_slots(np.zeros((5, 2, 4))),
        r"expected a tensor of shape \[layers, tokens, 2 x heads, elements\], got \[5, 2, 4\]",
    ),
    (
        lambda: engine_layouts.states([[np.zeros(5)], [TORN[:, :, ::2]]]),
        "layer 1, state 0: a block must be contiguous, but axis 2 has a stride of 4",
    ),
    (
        lambda: engine_layouts.states([[np.zeros(5), TORN[:, :, :4]]]),
        "layer 0, state 1: a block must be contiguous, but axis 1 has a stride of 16",
    ),
    (lambda: engine_layouts.states([[np.zeros(())]]), "layer 0, state 0: expected a tensor of shape"),
    (lambda: engine_layouts.states([[np.zeros((5, 0))]]), "layer 0, state 0 is empty"),
]


@pytest.mark.parametrize(("make", "why"), REJECTED)
def test_tensors_that_do_not_have_the_layout_are_rejected(make: Callable[[], object], why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        make()


def test_expanded_tensors_are_rejected() -> None:
    """All blocks in one place, or all heads."""
    torch = pytest.importorskip("torch")
    with pytest.raises(LayoutError, match="layer 0, k: block stride of 0 bytes, but each step covers 8"):
        engine_layouts.kv_first([torch.zeros(2, 1, 3, 2, 4, dtype=torch.int16).expand(2, 5, 3, 2, 4)])
    with pytest.raises(LayoutError, match="layer 0, k: head stride of 0 bytes, but each step covers 8"):
        engine_layouts.kv_second([torch.zeros(5, 2, 3, 1, 4, dtype=torch.int16).expand(5, 2, 3, 2, 4)])


def test_k_and_v_in_one_place_are_rejected() -> None:
    torch = pytest.importorskip("torch")
    one = torch.zeros(5, 3, 2, 4)
    with pytest.raises(LayoutError, match="layer 0, k and layer 0, v overlap in memory"):
        engine_layouts.separate_blocks([one], [one])
    with pytest.raises(LayoutError, match="layer 0, k and layer 0, v overlap in memory"):
        engine_layouts.kv_first([one.expand(2, 5, 3, 2, 4)])
