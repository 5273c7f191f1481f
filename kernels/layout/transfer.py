"""The bytes that one copy moves: tables of planes, pages and blocks, shared by the kernels and the host path.

    planes: rows of tables.PLANE
    pages, blocks, skip: see SlotMap

Byte o of page p lies in the arena at frames[p, o // frame bytes] * frame bytes + o % frame bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.kernels.layout.cache_layout import CacheLayout, LayoutError, Plane
from pagetier.kernels.layout.page_layout import UNSHARDED, Heads, PageLayout, Rows, Shard
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.tables import PLANE, TOKENS, TableRows, frozen, row_bytes, token_rows
from pagetier.shm._core import check_blocks, check_blocks_apart

_USUAL_PAGES: Final = 64  # most copies have at most so many


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

    def require_host(self) -> None:
        """Raises ValueError if the cache is not in host memory."""
        if self.device != "cpu":
            raise ValueError(f"the cache is on {self.device}, but the host path copies host memory only")

    @property
    def nbytes(self) -> int:
        """The number of bytes to move."""
        pages = self.slots.copied
        return int((pages["end"] - pages["first"]).sum()) * row_bytes(self.planes)


class _Planes(msgspec.Struct, frozen=True, eq=False):
    """Planes of which the same tokens of a page are copied, and the layer of each."""

    planes: TableRows
    layers: npt.NDArray[np.int64]
    tokens: range


class PagedCache:
    """One rank's cache, and its share of a page's bytes. Thread-safe."""

    def __init__(self, cache: CacheLayout, page: PageLayout, shard: Shard = UNSHARDED) -> None:
        """Raises LayoutError, naming the plane, where the cache does not match the page and the shard."""
        self.cache, self.page, self.shard = cache, page, shard
        stage = shard.layers(len(page.layers))
        if cache.layers != len(stage):
            raise LayoutError(f"the cache has {cache.layers} layers, but stage {shard.stage} has {len(stage)}")
        rows, stored, layers = [], [], []
        own = zip(page.layers, page.offsets, page.writers(shard.ranks), strict=True)
        for planes, (wanted, offsets, writers) in zip(
            cache.by_layer, islice(own, stage.start, stage.stop), strict=True
        ):
            if [plane.kind for plane in planes] != [row.kind for row in wanted]:
                raise LayoutError(f"layer {planes[0].layer} has {_kinds(planes)}, but the page {_kinds(wanted)}")
            for plane, row, offset, writer in zip(planes, wanted, offsets, writers, strict=True):
                heads = _share(plane, row, shard)
                rows.append(_row(plane, heads, offset, page.tokens))
                stored.append(heads.tokens(page.tokens) if writer is None else _tokens_of(writer, page, shard))
                layers.append(plane.layer)
        self._all = _planes(rows, layers, range(page.tokens))
        self._shares = tuple(_shares(rows, layers, stored))
        self._in_a_row = _whole_pages(_USUAL_PAGES, page.tokens)

    def in_a_row(self, blocks: npt.NDArray[np.int32], skip: npt.NDArray[np.uint8]) -> SlotMap:
        """Returns the slots of whole pages that are in the blocks one after the other.

        Raises:
            ValueError: The last page is incomplete, or `skip` is neither empty nor as long as there are pages.
        """
        pages, rest = divmod(len(blocks) * self.cache.block_tokens, self.page.tokens)
        if rest:
            raise ValueError(f"{len(blocks)} blocks end with {rest} tokens of a page of {self.page.tokens}")
        rows = self._in_a_row
        if pages > len(rows):
            rows = self._in_a_row = _whole_pages(2 * pages, self.page.tokens)
        return SlotMap(self.page.tokens, self.cache.block_tokens, blocks, rows[:pages], skip)

    def storing(self, slots: SlotMap) -> tuple[Transfer, ...]:
        """Returns the copies that store this rank's share of pages.

        Where several ranks have the same heads, the tokens are divided among them. The result is one copy, or several
        if the planes are not all replicated alike. A block may be stored several times.

        Raises:
            ValueError: As for loading(), except for repeated blocks and tokens.
        """
        self._require_sizes(slots)
        check_blocks(self.cache.blocks, slots.block_tokens, slots.pages, slots.blocks, slots.skip)
        return tuple(self._transfer(slots.narrowed(share.tokens), share) for share in self._shares)

    def loading(self, slots: SlotMap) -> Transfer:
        """Returns the copy that loads pages into all heads and layers of this rank. Skipped pages are not validated.

        Raises:
            ValueError: Page or block sizes differ, a block ID is not in the cache, a block is named twice, or two pages
                cover the same tokens.
        """
        self._require_sizes(slots)
        check_blocks_apart(self.cache.blocks, slots.block_tokens, slots.pages, slots.blocks, slots.skip)
        return self._transfer(slots, self._all)

    def _require_sizes(self, slots: SlotMap) -> None:
        if (slots.page_tokens, slots.block_tokens) != (self.page.tokens, self.cache.block_tokens):
            raise ValueError(
                f"the slots have pages of {slots.page_tokens} tokens in blocks of {slots.block_tokens}, the cache"
                f" pages of {self.page.tokens} and blocks of {self.cache.block_tokens}"
            )

    def _transfer(self, slots: SlotMap, of: _Planes) -> Transfer:
        return Transfer(of.planes, of.layers, slots, self.page.nbytes, self.cache.device, self.cache.owners)

    def __repr__(self) -> str:
        return f"<PagedCache {self.cache!r} as {self.page!r}, {self.shard}>"


def _planes(rows: Sequence[object], layers: Sequence[int], tokens: range) -> _Planes:
    return _Planes(frozen(np.array(rows, PLANE), PLANE, -1), frozen(np.array(layers, np.int64), np.int64, -1), tokens)


def _shares(rows: Sequence[object], layers: Sequence[int], tokens: Sequence[range]) -> Iterator[_Planes]:
    """Yields the planes of which this rank stores the same tokens, for each range of tokens. Yields one at least."""
    for share in [share for share in dict.fromkeys(tokens) if share] or tokens[:1]:
        chosen = [at for at, its in enumerate(tokens) if its == share]
        yield _planes([rows[at] for at in chosen], [layers[at] for at in chosen], share)


def _whole_pages(count: int, page_tokens: int) -> TableRows:
    """Returns the rows of whole pages, the first of which begins with a table of blocks."""
    return frozen(token_rows(np.arange(0, count * page_tokens, page_tokens), 0, page_tokens), TOKENS, -1)


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


def _tokens_of(writer: int, page: PageLayout, shard: Shard) -> range:
    """Returns the tokens that this rank stores of rows that one rank writes."""
    return range(page.tokens if writer == shard.rank else 0)


def _row(plane: Plane, heads: Heads, offset: int, tokens: int) -> tuple[int, ...]:
    page_head = tokens * plane.width
    at = offset + heads.first * page_head
    strides = (plane.block_stride, plane.token_stride, plane.head_stride)
    return (plane.address, *strides, at, page_head, heads.count, plane.width)


def _kinds(planes: Sequence[Plane] | Sequence[Rows]) -> str:
    return ", ".join(plane.kind for plane in planes)
