"""Random copies: caches with their axes in any order, pages, frames, and bytes that must not change."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import gcd, prod
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from pagetier.kernels.gpu.launch import GRID, Grid
from pagetier.kernels.layout.frames import Arena, Frames
from pagetier.kernels.layout.slot_map import SlotMap, joined_slots
from pagetier.kernels.layout.tables import PLANE, TOKENS
from pagetier.kernels.layout.transfer import Transfer

FRAME_BYTES = 4096
GUARD = 64  # bytes before and after each tensor of a cache
AXES = ("layer", "kind", "block", "token", "head")


class Stored(msgspec.Struct, frozen=True):
    """One tensor of a cache.

    Attributes:
        order: Its axes, the outermost first.
        gap: Bytes between rows.
        shift: The offset of its first byte.
    """

    order: tuple[str, ...]
    layers: int
    kinds: int
    heads: int
    width: int
    gap: int = 0
    shift: int = 0


class Rank(msgspec.Struct, frozen=True):
    """The heads of a page that the cache has: the numbers of other heads before and after them."""

    before: int = 0
    behind: int = 0


UNSHARDED = Rank()


class Case(msgspec.Struct, frozen=True, eq=False):
    """A copy whose cache begins at address 0 and whose arena has no address yet.

    `planes` selects the planes to copy.
    """

    transfer: Transfer
    frames: Frames
    cache_bytes: int
    planes: range
    grid: Grid


def planes_of(tensors: Sequence[Stored], slots: SlotMap, blocks: int, rank: Rank) -> tuple[Any, int, int]:
    """Returns the table of planes, tensor by tensor; the bytes of the cache; the bytes of a page."""
    rows, begin, at = [], GUARD, 0
    for tensor in tensors:
        begin += tensor.shift
        counts = {"layer": tensor.layers, "kind": tensor.kinds, "block": blocks}
        counts |= {"token": slots.block_tokens, "head": tensor.heads}
        strides, step = {}, tensor.width + tensor.gap
        for axis in reversed(tensor.order):
            strides[axis], step = step, step * counts[axis]
        page_head = slots.page_tokens * tensor.width
        for layer, kind in product(range(tensor.layers), range(tensor.kinds)):
            base = begin + layer * strides["layer"] + kind * strides["kind"]
            first = at + rank.before * page_head
            in_cache = (base, strides["block"], strides["token"], strides["head"])
            rows.append((*in_cache, first, page_head, tensor.heads, tensor.width))
            at += -(-(rank.before + tensor.heads + rank.behind) * page_head // 16) * 16
        begin += prod(counts.values()) * (tensor.width + tensor.gap) + GUARD
    return np.array(rows, PLANE), begin, at


def case_of(
    tensors: Sequence[Stored], slots: SlotMap, rng: np.random.Generator, rank: Rank = UNSHARDED, grid: Grid = GRID
) -> Case:
    """Returns a case that copies all planes; the pages' frames are at random places in a larger arena."""
    planes, cache_bytes, page_bytes = planes_of(tensors, slots, int(slots.blocks.max(initial=0)) + 2, rank)
    transfer = Transfer(planes, np.arange(len(planes)), slots, page_bytes, "cpu", ())
    page_frames = -(-page_bytes // FRAME_BYTES)
    count = len(slots) * page_frames + 3
    table = rng.permutation(count)[: len(slots) * page_frames].reshape(len(slots), page_frames).astype(np.int32)
    frames = Frames(Arena(FRAME_BYTES, count * FRAME_BYTES, FRAME_BYTES), table)
    return Case(transfer, frames, cache_bytes, range(len(planes)), grid)


@st.composite
def stored_tensors(draw: Any, layers: int) -> Stored:
    """Draws a tensor with its axes in any order and rows of any width."""
    step = draw(st.sampled_from([16, 16, 16, 8, 4, 2, 1]))
    return Stored(
        order=tuple(draw(st.permutations(AXES))),
        layers=layers,
        kinds=draw(st.integers(1, 2)),
        heads=draw(st.integers(1, 3)),
        width=step * draw(st.sampled_from([1, 3, 8, 16, 72])),
        gap=step * draw(st.sampled_from([0, 0, 1, 3])),
        shift=step * draw(st.integers(0, 3)),
    )


@st.composite
def _request(draw: Any, page_tokens: int, block_tokens: int) -> SlotMap:
    """Draws a request that begins anywhere in its first page and block, in blocks that are all 0."""
    count, position = draw(st.integers(1, 3)), draw(st.integers(-page_tokens + 1, 2 * block_tokens))
    pages = np.zeros(count, TOKENS)
    for page in range(count):
        begin = position + page * page_tokens
        first = max(0, -begin)
        whole = st.just((first, page_tokens))
        pages[page] = (begin, *draw(whole | st.tuples(*[st.integers(first, page_tokens)] * 2).map(sorted)))
    blocks = np.zeros(-(-(position + count * page_tokens) // block_tokens), np.int32)
    skip = draw(st.just([0] * count) | st.lists(st.integers(0, 1), min_size=count, max_size=count))
    return SlotMap(page_tokens, block_tokens, blocks, pages, np.array(skip, np.uint8))


@st.composite
def slot_maps(
    draw: Any, rng: np.random.Generator, requests: int = 1, page_tokens: int = 0, block_tokens: int = 0
) -> SlotMap:
    """Draws up to this number of requests in random blocks of a cache. A size of 0 is drawn, too."""
    sizes = page_tokens or draw(st.integers(1, 9)), block_tokens or draw(st.sampled_from([1, 1, 2, 3, 4, 16]))
    slots = joined_slots(*draw(st.lists(_request(*sizes), min_size=1, max_size=requests)))
    blocks = rng.permutation(len(slots.blocks) + 2)[: len(slots.blocks)]
    skip = slots.skip if slots.skip.any() or draw(st.booleans()) else slots.skip[:0]
    return msgspec.structs.replace(slots, blocks=blocks.astype(np.int32), skip=skip)


@st.composite
def cases(draw: Any) -> Case:
    """Draws a case with few, large tiles, because the interpreter takes milliseconds per item."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layers = draw(st.integers(1, 2))
    tensors = draw(st.lists(stored_tensors(layers), min_size=1, max_size=2))
    case = case_of(tensors, draw(slot_maps(rng)), rng, Rank(draw(st.integers(0, 2)), draw(st.integers(0, 2))))
    some = st.tuples(*[st.integers(0, len(case.planes))] * 2).map(lambda edges: range(*sorted(edges)))
    most = max(tensor.heads * tensor.width // gcd(tensor.width, 16) for tensor in tensors)
    units = case.transfer.slots.page_tokens * most
    tiles = {1024, *(1 << max(4, (units // few).bit_length()) for few in (1, 3))}
    grid = Grid(draw(st.sampled_from([1, 2, 3, 7, 500])), draw(st.sampled_from(sorted(tiles))))
    return msgspec.structs.replace(case, planes=draw(st.just(case.planes) | some), grid=grid)
