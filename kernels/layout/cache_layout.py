"""Describes an engine's cache by base pointers and strides, and rejects layouts that the copies cannot address.

A cache is a set of *planes*. A plane is K or V of one layer (or a latent, scales, a recurrent state): rows of `width`
bytes, one for each block, token and head. The engine's order of axes is expressed by the strides alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final, TypeAlias

import msgspec

from pagetier.kernels.layout.tensors import View
from pagetier.shm.cached import CachedProperty
from pagetier.shm.errors import PagetierError

_MOST: Final = 1 << 62


class LayoutError(PagetierError, ValueError):
    """A cache, a page or a shard of a model that cannot be copied; the message names what is wrong."""


class Plane(msgspec.Struct, frozen=True):
    """Rows of one kind in one layer of a cache. All strides are in bytes.

    Attributes:
        layer: The layer, counted from 0.
        kind: "k", "v", "latent" or any other name that is unique in the layer.
        dtype: The element type by torch's name.
        address: The address of block 0, token 0, head 0.
        blocks: The number of blocks.
        tokens: The number of tokens in a block.
        heads: The number of heads.
        width: The bytes of a row.
        block_stride, token_stride, head_stride: The strides from one block, token or head to the next.
    """

    layer: int
    kind: str
    dtype: str
    address: int
    blocks: int
    tokens: int
    heads: int
    width: int
    block_stride: int
    token_stride: int
    head_stride: int

    def __post_init__(self) -> None:
        if min(self.blocks, self.tokens, self.heads, self.width) < 1:
            raise LayoutError(f"{self}: a plane needs at least one block, token, head and byte")
        if not all(-_MOST <= stride < _MOST for stride, _, _ in self._axes()):
            raise LayoutError(f"{self}: strides have at most 62 bits")
        extent = self.width
        for stride, count, axis in sorted(self._axes()):
            if count > 1 and stride < extent:
                raise LayoutError(f"{self}: {axis} stride of {stride} bytes, but each step covers {extent} bytes")
            extent += (count - 1) * stride

    @property
    def end(self) -> int:
        """The address after the plane's last byte."""
        return self.address + sum(stride * (count - 1) for stride, count, _ in self._axes()) + self.width

    @property
    def pattern(self) -> Pattern:
        """The bytes that the plane covers, relative to its address."""
        return tuple((stride, count) for stride, count, _ in self._axes() if count > 1), self.width

    def _axes(self) -> Iterator[tuple[int, int, str]]:
        yield self.block_stride, self.blocks, "block"
        yield self.token_stride, self.tokens, "token"
        yield self.head_stride, self.heads, "head"

    def __str__(self) -> str:
        return f"layer {self.layer}, {self.kind}"


Pattern: TypeAlias = tuple[tuple[tuple[int, int], ...], int]
"""Pairs of a stride and the number of places along it, and the bytes at each place."""


@lru_cache(maxsize=1 << 16)  # the layers of one allocation repeat the same questions
def _meet(gap: int, one: Pattern, other: Pattern) -> bool:
    """Returns whether two planes share a byte; the other plane begins `gap` bytes later."""
    ranges: dict[int, tuple[int, int]] = {}
    for stride, count in one[0]:
        ranges[stride] = (1 - count, 0)
    for stride, count in other[0]:
        ranges[stride] = (ranges.get(stride, (0, 0))[0], count - 1)
    return _hits(gap, sorted(ranges.items(), reverse=True), -other[1], one[1])


def _hits(gap: int, ranges: list[tuple[int, tuple[int, int]]], low: int, high: int) -> bool:
    """Returns whether some choice of steps brings `gap` between low and high. Tries the longest strides first."""
    if not ranges:
        return low < gap < high
    (stride, (least, most)), rest = ranges[0], ranges[1:]
    back, forth = (sum(step * ends[at] for step, ends in rest) for at in (0, 1))
    first, last = max(least, (low - forth - gap) // stride + 1), min(most, (high - back - gap - 1) // stride)
    return any(_hits(gap + steps * stride, rest, low, high) for steps in range(first, last + 1))


def plane_of(view: View, layer: int, kind: str) -> Plane:
    """Returns a plane of a view with the axes (blocks, tokens, heads, elements).

    Raises:
        LayoutError: The view has other axes or is empty, the elements of a row are not contiguous, or rows overlap.
    """
    if len(view.shape) != 4:
        raise LayoutError(
            f"layer {layer}, {kind}: expected the axes blocks, tokens, heads, elements, got {len(view.shape)} axes"
        )
    blocks, tokens, heads, elements = view.shape
    if 0 in view.shape:
        sizes = f"{blocks} blocks of {tokens} tokens, {heads} heads of {elements} elements"
        raise LayoutError(f"layer {layer}, {kind} is empty: {sizes}")
    if elements > 1 and view.strides[3] != view.itemsize:
        raise LayoutError(
            f"layer {layer}, {kind}: element stride of {view.strides[3]} bytes: the last axis must be contiguous"
            f" ({view.dtype} has {view.itemsize} bytes)"
        )
    width = elements * view.itemsize
    return Plane(layer, kind, view.dtype, view.address, blocks, tokens, heads, width, *view.strides[:3])


class CacheLayout(msgspec.Struct, frozen=True, eq=False, dict=True):
    """All planes of one rank's cache, ordered by layer. Layers are counted from 0 and have at least one plane each.

    Attributes:
        planes: The planes.
        device: The device of the memory, by torch's name.
        owners: Objects that keep the memory alive.

    Raises:
        LayoutError: Two planes of a layer have the same kind, planes differ in their blocks, or two planes overlap, so
            that loading one would overwrite the other.
    """

    planes: tuple[Plane, ...]
    device: str
    owners: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        if [layer for layer, _ in groupby(self.planes, lambda plane: plane.layer)] != list(range(self.layers)):
            raise LayoutError("the planes of a cache must be ordered by layer, from layer 0 on, without a gap")
        self._check_alike()
        self._check_kinds()
        self._check_apart()

    def _check_alike(self) -> None:
        first = self.planes[0]
        for plane in self.planes:
            if (plane.blocks, plane.tokens) != (first.blocks, first.tokens):
                raise LayoutError(
                    f"{plane}: {plane.blocks} blocks of {plane.tokens} tokens, but {first} has"
                    f" {first.blocks} of {first.tokens}"
                )

    def _check_kinds(self) -> None:
        for plane, count in Counter(map(str, self.planes)).items():
            if count > 1:
                raise LayoutError(f"{plane}: a layer has {count} planes of this kind")

    def _check_apart(self) -> None:
        planes = sorted(self.planes, key=lambda plane: plane.address)
        addresses, patterns = [plane.address for plane in planes], [plane.pattern for plane in planes]
        for at, plane in enumerate(planes):
            for other in range(at + 1, bisect_left(addresses, plane.end)):
                if _meet(addresses[other] - plane.address, patterns[at], patterns[other]):
                    raise LayoutError(f"{plane} and {planes[other]} overlap in memory")

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.planes[-1].layer + 1 if self.planes else 1

    @property
    def blocks(self) -> int:
        """The number of blocks; block IDs are below it."""
        return self.planes[0].blocks

    @property
    def block_tokens(self) -> int:
        """The number of tokens in a block; 1 where every token has its own slot."""
        return self.planes[0].tokens

    @CachedProperty
    def by_layer(self) -> tuple[tuple[Plane, ...], ...]:
        """The planes of each layer."""
        return tuple(tuple(planes) for _, planes in groupby(self.planes, lambda plane: plane.layer))

    def __repr__(self) -> str:
        kinds = ", ".join(plane.kind for plane in self.by_layer[0])
        blocks = f"{self.blocks} blocks of {self.block_tokens}"
        return f"<CacheLayout {self.layers} layers of {kinds}; {blocks} on {self.device}>"


def cache_of(layers: Sequence[Sequence[tuple[str, View]]]) -> CacheLayout:
    """Returns the layout of views with the axes (blocks, tokens, heads, elements), each with its kind, layer by layer.

    Layers that share their tensors with an earlier layer have no state of their own, and are left out.

    Raises:
        LayoutError: There is no view, the views are on several devices, or plane_of() or CacheLayout reject them.
    """
    views = [(layer, kind, view) for layer, kinds in enumerate(_distinct(layers)) for kind, view in kinds]
    if not views or not all(layers):
        raise LayoutError("a cache needs at least one tensor in each layer")
    device = views[0][2].device
    for layer, kind, view in views:
        if view.device != device:
            raise LayoutError(f"layer {layer}, {kind} is on {view.device}, but the cache is on {device}")
    planes = tuple(plane_of(view, layer, kind) for layer, kind, view in views)
    return CacheLayout(planes, device, tuple(view.owner for _, _, view in views))


def _distinct(layers: Sequence[Sequence[tuple[str, View]]]) -> list[Sequence[tuple[str, View]]]:
    """Returns the first of the layers that have the same tensors."""
    known: dict[object, Sequence[tuple[str, View]]] = {}
    for kinds in layers:
        same = [(kind, view.address, view.shape, view.strides, view.dtype, view.device) for kind, view in kinds]
        known.setdefault(tuple(same), kinds)
    return list(known.values())


def joined(*caches: CacheLayout) -> CacheLayout:
    """Returns the caches joined layer by layer: the planes of the first cache, then those of the next.

    Raises:
        LayoutError: The caches differ in layers, blocks or device, have the same kind twice in a layer, or overlap.
    """
    if len({(cache.layers, cache.device) for cache in caches}) != 1:
        raise LayoutError(
            f"cannot join caches with different layers or devices: {', '.join(map(repr, caches)) or 'none given'}"
        )
    layers = zip(*(cache.by_layer for cache in caches), strict=True)
    planes = tuple(plane for layer in layers for planes in layer for plane in planes)
    return CacheLayout(planes, caches[0].device, tuple(owner for cache in caches for owner in cache.owners))
