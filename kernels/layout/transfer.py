"""The bytes that one copy moves: tables of planes, pages and blocks, shared by the kernels and the host path.

    planes: rows of tables.PLANE
    pages, blocks, skip: see SlotMap

Byte o of page p lies in the arena at frames[p, o // frame bytes] * frame bytes + o % frame bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.kernels.layout.arrays import frozen
from pagetier.kernels.layout.cache_layout import CacheLayout, LayoutError, Plane
from pagetier.kernels.layout.page_layout import UNSHARDED, Heads, PageLayout, Rows, Shard
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.tables import PLANE, TableRows, row_bytes


class Transfer(msgspec.Struct, frozen=True, eq=False):
    """A validated copy between a cache and pages: everything that it addresses in the cache exists.

    `layers` has the layer of each plane, ascending. `owners` keep the cache's memory alive.
    """

    planes: TableRows
    layers: npt.NDArray[np.int64]
    slots: SlotMap
    page_bytes: int
    device: str
    owners: tuple[object, ...]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "planes", frozen(self.planes, PLANE, -1))
        msgspec.structs.force_setattr(self, "layers", frozen(self.layers, np.int64, len(self.planes)))

    def by_layer(self, layers: int) -> list[tuple[range, int]]:
        """Returns for each layer of this rank's cache its rows of `planes`, and the bytes of a token in them."""
        ends = np.searchsorted(self.layers, np.arange(layers + 1))
        sizes = np.concatenate(([0], np.cumsum(self.planes["heads"] * self.planes["width"])))[ends].tolist()
        bounds = zip(pairwise(ends.tolist()), pairwise(sizes), strict=True)
        return [(range(first, end), after - before) for (first, end), (before, after) in bounds]

    @property
    def nbytes(self) -> int:
        """The number of bytes to move."""
        pages = self.slots.copied
        return int((pages["end"] - pages["first"]).sum()) * row_bytes(self.planes)


class PagedCache:
    """One rank's cache, and its share of a page's bytes. Thread-safe."""

    def __init__(self, cache: CacheLayout, page: PageLayout, shard: Shard = UNSHARDED) -> None:
        """Raises LayoutError, naming the plane, where the cache does not match the page and the shard."""
        self.cache, self.page, self.shard = cache, page, shard
        stage = shard.layers(len(page.layers))
        if cache.layers != len(stage):
            raise LayoutError(f"the cache has {cache.layers} layers, but stage {shard.stage} has {len(stage)}")
        rows, heads, layers = [], [], []
        for planes, wanted, offsets in zip(
            cache.by_layer, page.layers[stage.start :], page.offsets[stage.start :], strict=False
        ):
            if [plane.kind for plane in planes] != [row.kind for row in wanted]:
                raise LayoutError(f"layer {planes[0].layer} has {_kinds(planes)}, but the page {_kinds(wanted)}")
            for plane, row, offset in zip(planes, wanted, offsets, strict=True):
                its = _share(plane, row, shard)
                rows.append(_row(plane, its, offset, page.tokens))
                heads.append(its)
                layers.append(plane.layer)
        self._planes = np.array(rows, PLANE)
        self._layers = np.array(layers, np.int64)
        self._heads = tuple(heads)

    def storing(self, slots: SlotMap) -> tuple[Transfer, ...]:
        """Returns the copies that store this rank's share of pages.

        Where several ranks have the same heads, the tokens are divided among them. The result is one copy, or several
        if the planes are not all replicated alike. A block may be stored several times.

        Raises:
            ValueError: As for loading(), except for repeated blocks and tokens.
        """
        self._check(slots)
        shares = [heads.tokens(self.page.tokens) for heads in self._heads]
        return tuple(
            self._transfer(slots.narrowed(share), np.array([its == share for its in shares]))
            for share in dict.fromkeys(shares)
        )

    def loading(self, slots: SlotMap) -> Transfer:
        """Returns the copy that loads pages into all heads and layers of this rank. Skipped pages are not validated.

        Raises:
            ValueError: Page or block sizes differ, a block ID is not in the cache, a block is named twice, or two pages
                cover the same tokens.
        """
        used = self._check(slots)
        first = np.ones(len(used), np.bool_)
        np.greater(used[1:], used[:-1], out=first[1:])
        ids = np.sort(slots.blocks[used[first]])
        again = ids[1:][ids[1:] == ids[:-1]]
        if len(again):
            raise ValueError(f"block {again[0]} would be loaded {int((ids == again[0]).sum())} times")
        if slots.overlap():
            raise ValueError("two pages would be loaded to the same tokens")
        return self._transfer(slots, np.full(len(self._planes), fill_value=True))

    def _check(self, slots: SlotMap) -> npt.NDArray[np.int64]:
        if (slots.page_tokens, slots.block_tokens) != (self.page.tokens, self.cache.block_tokens):
            raise ValueError(
                f"the slots have pages of {slots.page_tokens} tokens in blocks of {slots.block_tokens}, the cache"
                f" pages of {self.page.tokens} and blocks of {self.cache.block_tokens}"
            )
        used = slots.used()
        ids = slots.blocks[used]
        if len(ids) and int(ids.max()) >= self.cache.blocks:
            raise ValueError(f"block {ids.max()} does not exist: the cache has {self.cache.blocks} blocks")
        return used

    def _transfer(self, slots: SlotMap, which: npt.NDArray[np.bool_]) -> Transfer:
        planes, layers = self._planes[which], self._layers[which]
        return Transfer(planes, layers, slots, self.page.nbytes, self.cache.device, self.cache.owners)

    def __repr__(self) -> str:
        return f"<PagedCache {self.cache!r} as {self.page!r}, {self.shard}>"


def _share(plane: Plane, row: Rows, shard: Shard) -> Heads:
    """Returns the plane's share of the page's heads. Raises LayoutError if the plane does not match it."""
    if (plane.dtype, plane.width) != (row.dtype, row.width):
        raise LayoutError(
            f"{plane}: rows of {plane.width} bytes of {plane.dtype}, but the page has {row.width} bytes of {row.dtype}"
        )
    heads = shard.heads(row.heads)
    if plane.heads != heads.count:
        raise LayoutError(
            f"{plane}: {plane.heads} heads, but rank {shard.rank} of {shard.ranks} has {heads.count} of {row.heads}"
        )
    return heads


def _row(plane: Plane, heads: Heads, offset: int, tokens: int) -> tuple[int, ...]:
    page_head = tokens * plane.width
    at = offset + heads.first * page_head
    strides = (plane.block_stride, plane.token_stride, plane.head_stride)
    return (plane.address, *strides, at, page_head, heads.count, plane.width)


def _kinds(planes: Sequence[Plane] | Sequence[Rows]) -> str:
    return ", ".join(plane.kind for plane in planes)
