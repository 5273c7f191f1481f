"""A copy as runs of bytes that lie side by side on both sides: what DMA engines take.

Nothing here loops over tokens, blocks, pages or planes: a copy becomes a few arrays.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from .device import Copy
from .frames import Frames
from .slots import SlotMap
from .transfer import Transfer

Numbers: TypeAlias = npt.NDArray[np.int64]
Addresses: TypeAlias = npt.NDArray[np.uint64]


class Runs(msgspec.Struct, frozen=True, eq=False):
    """Arrays of one length, C-contiguous, in the order of the pages and of their bytes.

    cache: where each run begins in the cache, or in the buffer that stands for it. arena: where it begins in a frame,
    which it does not leave. nbytes: 1 or more. page: of which page. No two runs have a byte of a page in common.
    """

    cache: Addresses
    arena: Addresses
    nbytes: Addresses
    page: Numbers

    def __len__(self) -> int:
        return len(self.nbytes)

    def of_pages(self, pages: range) -> Runs:
        """Those of some pages that follow each other."""
        first, end = np.searchsorted(self.page, [pages.start, pages.stop])
        return Runs(*(getattr(self, name)[first:end] for name in self.__struct_fields__))


class Cutting:
    """How a transfer is cut into runs between the cache and the frames; for any number of copies of it."""

    def __init__(self, transfer: Transfer, frames: Frames) -> None:
        """Raises ValueError if the table of frames is not one row a page or its rows do not hold a page."""
        frames.require_room(len(transfer.slots), transfer.page_bytes)
        self.transfer, self.frames = transfer, frames
        self._dense = _dense(transfer)
        self._blocks = _block_spans(transfer.slots)
        self._tokens = self._blocks if self._dense.all() else _token_spans(self._blocks)

    def runs(self, planes: range) -> Runs:
        """As few as there can be without leaving a frame. Raises ValueError if there are no such planes."""
        some = _planes(self.transfer, planes)
        dense = self._dense[planes.start : planes.stop]
        parts = [(dense, self._blocks), (~dense, self._tokens)]
        pieces = [_cached(some[which], spans) for which, spans in parts if which.any()]
        joined = _joined(pieces or [_cached(some, self._blocks)])
        return _framed(_merged(joined, self.transfer), self.frames)


def runs_of(copy: Copy) -> Runs:
    """Those of one copy; see Cutting, also for what is raised."""
    return Cutting(copy.transfer, copy.frames).runs(copy.planes)


def buffer_runs(copy: Copy, begins: Numbers, begin: int) -> Runs:
    """Between pages in the canonical order, each in one piece, and the frames; only what the copy covers.

    Args:
        copy: which bytes of which pages.
        begins: where each page begins, one address a page.
        begin: the byte of a page that lies there.

    Raises:
        ValueError: see Cutting.
    """
    transfer, frames = copy.transfer, copy.frames
    frames.require_room(len(transfer.slots), transfer.page_bytes)
    pieces = _paged(_planes(transfer, copy.planes), _page_spans(transfer.slots))
    there = msgspec.structs.replace(pieces, cache=begins[pieces.page] + pieces.offset - begin)
    return _framed(_merged(there, transfer), frames)


def run_bytes(transfer: Transfer, frame_bytes: int) -> int:
    """How long a run of a transfer is on average: bytes over runs, as a run costs the same whatever its length.

    It is counted, not expanded: each head of each plane has as many runs as tokens; or as pieces of blocks, if the
    tokens of a block lie side by side; or as rows of neighbouring blocks, if those do, too. The heads of a page are one
    run if they lie side by side and the page is in one block. At most a frame; 0 if nothing is moved. It may be more
    where planes lie side by side: they are not looked for.
    """
    planes, slots = transfer.planes, transfer.slots
    blocks = _block_spans(slots)
    tokens = int(blocks.count.sum())
    if not tokens or not len(planes):
        return 0
    dense, heads = _dense(transfer), planes[:, 6]
    adjoining = dense & (planes[:, 1] == slots.block_tokens * planes[:, 7])
    runs = heads * np.where(adjoining, _rows_of_blocks(blocks), np.where(dense, len(blocks.count), tokens))
    stacked = dense & (planes[:, 3] == planes[:, 5])
    runs -= stacked * (heads - 1) * int((blocks.count == slots.page_tokens).sum())
    mean = int((tokens * heads * planes[:, 7]).sum() // runs.sum())
    return min(mean, frame_bytes)


def _planes(transfer: Transfer, planes: range) -> Numbers:
    count = len(transfer.planes)
    if planes.step != 1 or not 0 <= planes.start <= planes.stop <= count:
        raise ValueError(f"{planes} of {count} planes")
    return transfer.planes[planes.start : planes.stop]


def _dense(transfer: Transfer) -> npt.NDArray[np.bool_]:
    """Of each plane, whether the tokens of a block lie side by side; an axis of one may have any stride."""
    side_by_side: npt.NDArray[np.bool_] = transfer.planes[:, 2] == transfer.planes[:, 7]
    return side_by_side | (transfer.slots.block_tokens == 1)


class _Spread(msgspec.Struct, frozen=True, eq=False):
    """counts[i] items for each i: which[j] is the i of item j, step[j] its number among those."""

    which: Numbers
    step: Numbers


def _spread(counts: Numbers) -> _Spread:
    which = np.repeat(np.arange(len(counts)), counts)
    return _Spread(which, np.arange(len(which)) - (np.cumsum(counts) - counts)[which])


class _Spans(msgspec.Struct, frozen=True, eq=False):
    """Tokens side by side: `count` of a page, from `token` on, that are `slot` and behind of one block."""

    page: Numbers
    token: Numbers
    count: Numbers
    block: Numbers
    slot: Numbers


def _page_spans(slots: SlotMap) -> _Spans:
    """What is copied of each page, as if it were one block."""
    page = np.flatnonzero(~slots.skips & (slots.pages[:, 2] > slots.pages[:, 1]))
    _, first, end = slots.pages[page].T
    return _Spans(page, first, end - first, np.zeros_like(first), first)


def _block_spans(slots: SlotMap) -> _Spans:
    """The same, cut at the borders of blocks."""
    pages, size = _page_spans(slots), slots.block_tokens
    position = slots.pages[pages.page, 0]
    first = position + pages.token
    end = first + pages.count
    each = _spread((end - 1) // size + 1 - first // size)
    place = (first // size)[each.which] + each.step
    begin = np.maximum(first[each.which], place * size)
    count = np.minimum(end[each.which], (place + 1) * size) - begin
    block = slots.blocks[place].astype(np.int64)
    return _Spans(pages.page[each.which], begin - position[each.which], count, block, begin - place * size)


def _token_spans(spans: _Spans) -> _Spans:
    """The same, token by token."""
    each = _spread(spans.count)
    token, slot = (first[each.which] + each.step for first in (spans.token, spans.slot))
    return _Spans(spans.page[each.which], token, np.ones_like(token), spans.block[each.which], slot)


def _rows_of_blocks(spans: _Spans) -> int:
    """How many spans there are if those of a page whose blocks are neighbours count as one."""
    follows = (np.diff(spans.page) == 0) & (np.diff(spans.block) == 1)
    return len(spans.page) - int(follows.sum())


class _Pieces(msgspec.Struct, frozen=True, eq=False):
    """Bytes of pages: `nbytes` of `page` from byte `offset` on; cache: their address there."""

    page: Numbers
    offset: Numbers
    cache: Numbers
    nbytes: Numbers


def _cached(planes: Numbers, spans: _Spans) -> _Pieces:
    """Every head of every plane, span by span."""
    each = _spread(planes[:, 6])
    heads = planes[each.which]
    base = heads[:, 0] + each.step * heads[:, 3]
    cache = base[:, None] + spans.block * heads[:, 1, None] + spans.slot * heads[:, 2, None]
    return msgspec.structs.replace(_paged(planes, spans), cache=cache.reshape(-1))


def _paged(planes: Numbers, spans: _Spans) -> _Pieces:
    """The same, and where it is in the cache is left open."""
    each = _spread(planes[:, 6])
    heads = planes[each.which]
    at, width = heads[:, 4] + each.step * heads[:, 5], heads[:, 7]
    offset = (at[:, None] + spans.token * width[:, None]).reshape(-1)
    nbytes = (spans.count * width[:, None]).reshape(-1)
    return _Pieces(np.tile(spans.page, len(heads)), offset, offset, nbytes)


def _joined(pieces: list[_Pieces]) -> _Pieces:
    if len(pieces) == 1:
        return pieces[0]
    names = _Pieces.__struct_fields__
    return _Pieces(*(np.concatenate([getattr(its, name) for its in pieces]) for name in names))


def _merged(pieces: _Pieces, transfer: Transfer) -> _Pieces:
    """Neighbours on both sides become one."""
    its = _taken(pieces, np.argsort(pieces.page * transfer.page_bytes + pieces.offset, kind="stable"))
    follows = np.diff(its.page) == 0
    for begin in (its.offset, its.cache):
        follows &= begin[1:] == begin[:-1] + its.nbytes[:-1]
    firsts = np.flatnonzero(np.concatenate([np.ones(min(1, len(its.page)), np.bool_), ~follows]))
    nbytes = np.add.reduceat(its.nbytes, firsts) if len(firsts) else its.nbytes
    return msgspec.structs.replace(_taken(its, firsts), nbytes=nbytes)


def _taken(pieces: _Pieces, places: npt.NDArray[Any]) -> _Pieces:
    return _Pieces(*(getattr(pieces, name)[places] for name in _Pieces.__struct_fields__))


def _framed(pieces: _Pieces, frames: Frames) -> Runs:
    """Cut at the borders of frames, and where the frames are."""
    size = frames.arena.frame_bytes
    first = pieces.offset // size
    each = _spread((pieces.offset + pieces.nbytes - 1) // size + 1 - first)
    frame = first[each.which] + each.step
    begin = np.maximum(pieces.offset[each.which], frame * size)
    end = np.minimum((pieces.offset + pieces.nbytes)[each.which], (frame + 1) * size)
    cache = pieces.cache[each.which] + begin - pieces.offset[each.which]
    number = frames.table[pieces.page[each.which], frame].astype(np.int64)
    arena = frames.arena.address + number * size + begin % size
    cache, arena, nbytes = (its.astype(np.uint64) for its in (cache, arena, end - begin))
    return Runs(cache, arena, nbytes, pieces.page[each.which])
