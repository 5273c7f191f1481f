"""Splits a copy into runs of bytes that are contiguous on both sides, the form that DMA engines take.

Nothing here loops over tokens, blocks, pages or planes: a copy becomes a few arrays.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.kernels.device import Copy
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.tables import Numbers, TableRows
from pagetier.kernels.layout.transfer import Transfer

Addresses: TypeAlias = npt.NDArray[np.uint64]


class Runs(msgspec.Struct, frozen=True, eq=False):
    """C-contiguous arrays of one length, ordered by page and by offset in the page. No two runs share a byte of a page.

    Attributes:
        cache: The address of each run in the cache, or in the buffer that replaces it.
        arena: The address of each run in a frame; a run never crosses frames.
        nbytes: The size of each run, 1 or more.
        page: The page of each run.
    """

    cache: Addresses
    arena: Addresses
    nbytes: Addresses
    page: Numbers

    def __len__(self) -> int:
        return len(self.nbytes)

    def of_pages(self, pages: range) -> Runs:
        """Returns the runs of consecutive pages."""
        first, end = np.searchsorted(self.page, [pages.start, pages.stop])
        return Runs(*(getattr(self, name)[first:end] for name in self.__struct_fields__))


class Cutting:
    """The split of a transfer into runs between the cache and the frames, for any number of copies of it."""

    def __init__(self, transfer: Transfer, frames: Frames) -> None:
        """Raises ValueError if the table of frames does not have one row a page or a row does not hold a page."""
        frames.require_room(len(transfer.slots), transfer.page_bytes)
        self.transfer, self.frames = transfer, frames
        self._dense = _dense(transfer)
        self._blocks = _block_spans(transfer.slots)
        self._tokens = self._blocks if self._dense.all() else _token_spans(self._blocks)

    def runs(self, planes: range) -> Runs:
        """Returns as few runs as possible without crossing frames. Raises ValueError if there are no such planes."""
        some = _planes(self.transfer, planes)
        dense = self._dense[planes.start : planes.stop]
        parts = [(dense, self._blocks), (~dense, self._tokens)]
        pieces = [_cached(some[which], spans) for which, spans in parts if which.any()]
        joined = _joined(pieces or [_cached(some, self._blocks)])
        return _framed(_merged(joined, self.transfer), self.frames)


def runs_of(copy: Copy) -> Runs:
    """Returns the runs of one copy; see Cutting, also for the errors raised."""
    return Cutting(copy.transfer, copy.frames).runs(copy.planes)


def buffer_runs(copy: Copy, begins: Numbers, begin: int) -> Runs:
    """Returns the runs between pages in canonical order, each contiguous, and the frames; only what the copy covers.

    Args:
        copy: The bytes and pages to copy.
        begins: The address of each page.
        begin: The offset in a page of the byte at that address.

    Returns:
        The runs.

    Raises:
        ValueError: As for Cutting.
    """
    transfer, frames = copy.transfer, copy.frames
    frames.require_room(len(transfer.slots), transfer.page_bytes)
    pieces = _paged(_planes(transfer, copy.planes), _page_spans(transfer.slots))
    there = msgspec.structs.replace(pieces, cache=begins[pieces.page] + pieces.offset - begin)
    return _framed(_merged(there, transfer), frames)


def run_bytes(transfer: Transfer, frame_bytes: int) -> int:
    """Returns the mean length of a transfer's runs: bytes over runs, since a run costs the same whatever its length.

    The runs are counted, not expanded: each head of each plane has as many runs as tokens; or as pieces of blocks, if
    the tokens of a block are contiguous; or as rows of neighbouring blocks, if those are contiguous too. The heads of a
    page are one run if they are contiguous and the page lies in one block. The result is at most a frame, and 0 if
    nothing is moved. It is too low where planes are contiguous, which is not examined.
    """
    planes, slots = transfer.planes, transfer.slots
    blocks = _block_spans(slots)
    tokens = int(blocks.count.sum())
    if not tokens or not len(planes):
        return 0
    dense, heads = _dense(transfer), planes["heads"]
    adjoining = dense & (planes["block"] == slots.block_tokens * planes["width"])
    runs = heads * np.where(adjoining, _rows_of_blocks(blocks), np.where(dense, len(blocks.count), tokens))
    stacked = dense & (planes["head"] == planes["page_head"])
    runs -= stacked * (heads - 1) * int((blocks.count == slots.page_tokens).sum())
    mean = int((tokens * heads * planes["width"]).sum() // runs.sum())
    return min(mean, frame_bytes)


def _planes(transfer: Transfer, planes: range) -> TableRows:
    count = len(transfer.planes)
    if planes.step != 1 or not 0 <= planes.start <= planes.stop <= count:
        raise ValueError(f"{planes} is not within the {count} planes")
    rows: TableRows = transfer.planes[planes.start : planes.stop]
    return rows


def _dense(transfer: Transfer) -> npt.NDArray[np.bool_]:
    """Returns for each plane whether the tokens of a block are contiguous.

    An axis of length one may have any stride.
    """
    side_by_side: npt.NDArray[np.bool_] = transfer.planes["token"] == transfer.planes["width"]
    return side_by_side | (transfer.slots.block_tokens == 1)


class _Spread(msgspec.Struct, frozen=True, eq=False):
    """counts[i] items for each i: which[j] is the i of item j, and step[j] its index among the items of i."""

    which: Numbers
    step: Numbers


def _spread(counts: Numbers) -> _Spread:
    which = np.repeat(np.arange(len(counts)), counts)
    return _Spread(which, np.arange(len(which)) - (np.cumsum(counts) - counts)[which])


class _Spans(msgspec.Struct, frozen=True, eq=False):
    """Contiguous tokens: `count` tokens of a page from `token` on, at `slot` and after in one block."""

    page: Numbers
    token: Numbers
    count: Numbers
    block: Numbers
    slot: Numbers


def _page_spans(slots: SlotMap) -> _Spans:
    """Returns the copied tokens of each page, as if it were one block."""
    page = np.flatnonzero(slots.copies)
    first, end = slots.pages["first"][page], slots.pages["end"][page]
    return _Spans(page, first, end - first, np.zeros_like(first), first)


def _block_spans(slots: SlotMap) -> _Spans:
    """Returns the copied tokens of each page, split at the borders of blocks."""
    pages, size = _page_spans(slots), slots.block_tokens
    position = slots.pages["position"][pages.page]
    first = position + pages.token
    end = first + pages.count
    each = _spread((end - 1) // size + 1 - first // size)
    place = (first // size)[each.which] + each.step
    begin = np.maximum(first[each.which], place * size)
    count = np.minimum(end[each.which], (place + 1) * size) - begin
    block = slots.blocks[place].astype(np.int64)
    return _Spans(pages.page[each.which], begin - position[each.which], count, block, begin - place * size)


def _token_spans(spans: _Spans) -> _Spans:
    """Returns the spans split into single tokens."""
    each = _spread(spans.count)
    token, slot = (first[each.which] + each.step for first in (spans.token, spans.slot))
    return _Spans(spans.page[each.which], token, np.ones_like(token), spans.block[each.which], slot)


def _rows_of_blocks(spans: _Spans) -> int:
    """Counts the spans, where spans of a page in neighbouring blocks count as one."""
    follows = (np.diff(spans.page) == 0) & (np.diff(spans.block) == 1)
    return len(spans.page) - int(follows.sum())


class _Pieces(msgspec.Struct, frozen=True, eq=False):
    """Bytes of pages: `nbytes` of `page` from byte `offset` on, and their address in the cache."""

    page: Numbers
    offset: Numbers
    cache: Numbers
    nbytes: Numbers


def _cached(planes: TableRows, spans: _Spans) -> _Pieces:
    """Returns the pieces of every head of every plane, span by span."""
    each = _spread(planes["heads"])
    base, block, token, head = (planes[name][each.which] for name in ("base", "block", "token", "head"))
    first = base + each.step * head
    cache = first[:, None] + spans.block * block[:, None] + spans.slot * token[:, None]
    return msgspec.structs.replace(_paged(planes, spans), cache=cache.reshape(-1))


def _paged(planes: TableRows, spans: _Spans) -> _Pieces:
    """Returns the same pieces without their addresses in the cache."""
    each = _spread(planes["heads"])
    at, page_head, width = (planes[name][each.which] for name in ("at", "page_head", "width"))
    begin = at + each.step * page_head
    offset = (begin[:, None] + spans.token * width[:, None]).reshape(-1)
    nbytes = (spans.count * width[:, None]).reshape(-1)
    return _Pieces(np.tile(spans.page, len(width)), offset, offset, nbytes)


def _joined(pieces: list[_Pieces]) -> _Pieces:
    if len(pieces) == 1:
        return pieces[0]
    names = _Pieces.__struct_fields__
    return _Pieces(*(np.concatenate([getattr(its, name) for its in pieces]) for name in names))


def _merged(pieces: _Pieces, transfer: Transfer) -> _Pieces:
    """Merges pieces that are neighbours on both sides."""
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
    """Splits pieces at the borders of frames and adds the frames' addresses."""
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
