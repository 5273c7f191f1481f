"""Maps the tokens of pages to the blocks of a cache: a request's block table, seen page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.kernels.layout.tables import TOKENS, TableRows, frozen, token_rows
from pagetier.shm._core import check_slots

Ids: TypeAlias = "Sequence[int] | npt.NDArray[np.integer[Any]] | Any"
"""Block IDs on the host: a sequence, an array or a CPU tensor."""

_NO_SKIP: Final = np.zeros(0, np.uint8)
_MOST: Final = 2**31
_FARTHEST: Final = 2**62


class SlotMap(msgspec.Struct, frozen=True, eq=False):
    """Pages, their tokens and their blocks, in the form that the copies take.

    Attributes:
        page_tokens: Tokens of a page.
        block_tokens: Tokens of a block.
        blocks: i32, the block IDs.
        pages: Rows of tables.TOKENS.
        skip: u8, 1 for each page that is not copied; or empty.

    All arrays are read-only and copied if needed.

    Raises:
        TypeError: A table has another dtype.
        ValueError: A table has another shape, or tokens lie outside of a page or of the block table.
    """

    page_tokens: int
    block_tokens: int
    blocks: npt.NDArray[np.int32]
    pages: TableRows
    skip: npt.NDArray[np.uint8] = _NO_SKIP

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "blocks", frozen(self.blocks, np.int32, -1))
        msgspec.structs.force_setattr(self, "pages", frozen(self.pages, TOKENS, -1))
        msgspec.structs.force_setattr(self, "skip", frozen(self.skip, np.uint8, len(self) if len(self.skip) else 0))
        check_slots(self.page_tokens, self.block_tokens, self.pages, self.blocks, self.skip)

    def __len__(self) -> int:
        return len(self.pages)

    @property
    def copies(self) -> npt.NDArray[np.bool_]:
        """True for each page of which anything is copied."""
        mask: npt.NDArray[np.bool_] = ~self.skips & (self.pages["end"] > self.pages["first"])
        return mask

    @property
    def copied(self) -> TableRows:
        """The rows of the pages of which anything is copied."""
        return self.pages[self.copies]

    def without(self, skip: Sequence[bool] | npt.NDArray[np.bool_]) -> SlotMap:
        """Returns the same map with the pages marked true in `skip` skipped too.

        Raises:
            ValueError: The mask has another length.
        """
        mask = np.asarray(skip, np.bool_)
        if mask.shape != (len(self),):
            raise ValueError(f"the mask has the shape {mask.shape}, and there are {len(self)} pages")
        return msgspec.structs.replace(self, skip=(self.skips | mask).astype(np.uint8))

    def some(self, first: int, end: int) -> SlotMap:
        """Returns the pages from `first` to `end` (exclusive)."""
        if (first, end) == (0, len(self)):
            return self
        return msgspec.structs.replace(self, pages=self.pages[first:end], skip=self.skip[first:end])

    @property
    def skips(self) -> npt.NDArray[np.bool_]:
        """True for each page that is not copied."""
        return self.skip.astype(np.bool_) if len(self.skip) else np.zeros(len(self), np.bool_)

    def require_whole(self, count: int) -> None:
        """Raises ValueError unless there are `count` pages and each one that is not skipped has all of its tokens."""
        if len(self) != count:
            raise ValueError(f"blocks of {len(self)} pages for {count} keys")
        partial = ((self.pages["first"] > 0) | (self.pages["end"] < self.page_tokens)) & ~self.skips
        if partial.any():
            raise ValueError(f"page {partial.argmax()} has only some of its tokens: only whole pages can be stored")

    def narrowed(self, tokens: range) -> SlotMap:
        """Returns the same map, with each page restricted to `tokens`, counted from its token 0."""
        if tokens.start <= 0 and tokens.stop >= self.page_tokens:
            return self
        least, most = np.clip((tokens.start, tokens.stop), 0, self.page_tokens)
        first, end = (self.pages[edge].clip(least, most) for edge in ("first", "end"))
        return msgspec.structs.replace(self, pages=token_rows(self.pages["position"], first, end))


def slot_map(
    blocks: Ids, count: int, page_tokens: int, block_tokens: int, position: int = 0, tokens: range | None = None
) -> SlotMap:
    """Returns the slot map of one request.

    Args:
        blocks: The request's block table or a piece of it; the slots for token-slot caches.
        count: The number of pages.
        page_tokens: Tokens of a page.
        block_tokens: Tokens of a block.
        position: The position of the first page's token 0, counted from the table's first token; negative if the page
            begins before the table does.
        tokens: The tokens to copy, counted from the table's first one; by default all of these pages. The range may
            begin and end inside a page.

    Raises:
        TypeError: Block IDs are not integers on the host.
        ValueError: IDs are negative or have more than 31 bits, or tokens lie outside of the table.
    """
    table = _ids(blocks)
    ends = position + count * page_tokens
    tokens = range(position, ends) if tokens is None else tokens
    if min(count, page_tokens - 1, block_tokens - 1) < 0 or tokens.step != 1:
        raise ValueError("pages and blocks have at least one token, and a range of tokens has step 1")
    if max(abs(position), abs(ends), page_tokens, block_tokens, len(table) * block_tokens) >= _FARTHEST:
        raise ValueError(f"tokens {position} to {ends} of {len(table)} blocks of {block_tokens}: more than 62 bits")
    tokens = tokens or range(position, position)
    if len(tokens) and not (max(0, position) <= tokens.start and tokens.stop <= min(ends, len(table) * block_tokens)):
        raise ValueError(_why_outside(tokens, range(position, ends), len(table), block_tokens))
    positions = position + page_tokens * np.arange(count, dtype=np.int64)
    first, end = ((edge - positions).clip(0, page_tokens) for edge in (tokens.start, tokens.stop))
    return SlotMap(page_tokens, block_tokens, table, token_rows(positions, first, end))


def _why_outside(tokens: range, pages: range, blocks: int, block_tokens: int) -> str:
    if pages.start <= tokens.start and tokens.stop <= pages.stop and tokens.start >= 0:
        needed = -(-tokens.stop // block_tokens)
        need = f"the {len(tokens)} tokens to copy need {needed} blocks of {block_tokens} tokens"
        return f"{need}: the block table has {blocks}"
    return f"tokens {tokens.start} to {tokens.stop} are outside of the pages (tokens {pages.start} to {pages.stop})"


def joined_slots(*maps: SlotMap) -> SlotMap:
    """Returns the slots of several requests for one copy. Raises ValueError if their page or block sizes differ."""
    if len({(one.page_tokens, one.block_tokens) for one in maps}) != 1:
        raise ValueError("the requests have pages or blocks of different sizes, or there are none")
    starts = np.cumsum([0, *(len(one.blocks) * one.block_tokens for one in maps)])
    pages = [
        token_rows(one.pages["position"] + start, one.pages["first"], one.pages["end"])
        for one, start in zip(maps, starts, strict=False)
    ]
    skips = [one.skips.astype(np.uint8) for one in maps]
    blocks = np.concatenate([one.blocks for one in maps])
    first = maps[0]
    return SlotMap(first.page_tokens, first.block_tokens, blocks, np.concatenate(pages), np.concatenate(skips))


def _ids(blocks: Ids) -> npt.NDArray[np.int32]:
    device = getattr(blocks, "device", "cpu")
    if getattr(device, "type", "cpu") != "cpu":
        raise TypeError(f"block IDs must be on the host to be validated, these are on {device}")
    ids = np.asarray(blocks)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise TypeError(f"block IDs are a one-dimensional array of integers, not {ids.dtype} of shape {ids.shape}")
    if not ids.size:
        return np.zeros(0, np.int32)
    if int(ids.min()) < 0 or int(ids.max()) >= _MOST:
        raise ValueError(f"block IDs from {ids.min()} to {ids.max()}: they must be 0 or more and have at most 31 bits")
    return np.array(ids, np.int32)  # a private copy, so that validated IDs cannot change
