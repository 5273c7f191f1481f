"""Which tokens of which pages lie in which blocks of a cache: a request's block table, seen page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from .tables import frozen

Ids: TypeAlias = "Sequence[int] | npt.NDArray[np.integer[Any]] | Any"
"""Block ids on the host: a sequence, an array, a CPU tensor."""

_NO_SKIP: Final = np.zeros(0, np.uint8)
_MOST: Final = 2**31
_FARTHEST: Final = 2**62


class SlotMap(msgspec.Struct, frozen=True, eq=False):
    """Pages, their tokens and their blocks, as the copies take them.

    blocks: i32, block ids. pages: i64 [pages, 3]: where in the table of blocks, in tokens, the page's token 0 lies;
    the first token of the page that is copied; one behind the last one. skip: u8, 1 for each page that is left alone,
    or empty. All are read-only, copies if need be. Raises TypeError or ValueError for other tables, and ValueError for
    tokens that a page or the table of blocks does not have.
    """

    page_tokens: int
    block_tokens: int
    blocks: npt.NDArray[np.int32]
    pages: npt.NDArray[np.int64]
    skip: npt.NDArray[np.uint8] = _NO_SKIP

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "blocks", frozen(self.blocks, np.int32, -1))
        msgspec.structs.force_setattr(self, "pages", frozen(self.pages, np.int64, -1, 3))
        msgspec.structs.force_setattr(self, "skip", frozen(self.skip, np.uint8, len(self) if len(self.skip) else 0))
        position, first, end = self.pages.T
        if ((first < 0) | (end < first) | (end > self.page_tokens)).any():
            raise ValueError(f"tokens that pages of {self.page_tokens} do not have")
        position, first, end = self.copied.T
        if ((position < -first) | (position > len(self.blocks) * self.block_tokens - end)).any():
            raise ValueError(f"tokens that {len(self.blocks)} blocks of {self.block_tokens} do not have")

    def __len__(self) -> int:
        return len(self.pages)

    @property
    def copied(self) -> npt.NDArray[np.int64]:
        """The rows of pages of which something is copied."""
        return self.pages[~self.skips & (self.pages[:, 2] > self.pages[:, 1])]

    def without(self, skip: Sequence[bool] | npt.NDArray[np.bool_]) -> SlotMap:
        """The same, also without the pages for which `skip` is true. Raises ValueError if it is not one for each."""
        mask = np.asarray(skip, np.bool_)
        if mask.shape != (len(self),):
            raise ValueError(f"a mask of shape {mask.shape} for {len(self)} pages")
        return msgspec.structs.replace(self, skip=(self.skips | mask).astype(np.uint8))

    def some(self, first: int, end: int) -> SlotMap:
        """Pages from `first` to `end`."""
        if (first, end) == (0, len(self)):
            return self
        return msgspec.structs.replace(self, pages=self.pages[first:end], skip=self.skip[first:end])

    @property
    def skips(self) -> npt.NDArray[np.bool_]:
        """True for each page that is left alone."""
        return self.skip.astype(np.bool_) if len(self.skip) else np.zeros(len(self), np.bool_)

    def require_whole(self, count: int) -> None:
        """Raises ValueError unless these are `count` pages, and all that are not skipped have all their tokens."""
        if len(self) != count:
            raise ValueError(f"blocks of {len(self)} pages for {count} keys")
        partial = ((self.pages[:, 1] > 0) | (self.pages[:, 2] < self.page_tokens)) & ~self.skips
        if partial.any():
            raise ValueError(f"page {partial.argmax()} has only some of its tokens: it can not be stored alone")

    def narrowed(self, tokens: range) -> SlotMap:
        """The same, of each page only what lies in `tokens`, which count from its token 0."""
        pages = self.pages.copy()
        pages[:, 1:] = pages[:, 1:].clip(*np.clip((tokens.start, tokens.stop), 0, self.page_tokens))
        return msgspec.structs.replace(self, pages=pages)

    def used(self) -> npt.NDArray[np.int64]:
        """Which places of the table of blocks are copied from or to, ascending; a place may come once a page."""
        pages = self.copied
        first = (pages[:, 0] + pages[:, 1]) // self.block_tokens
        counts = (pages[:, 0] + pages[:, 2] - 1) // self.block_tokens + 1 - first
        starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
        return np.sort(starts + np.arange(len(starts)))

    def overlap(self) -> bool:
        """Whether two pages are about the same tokens."""
        pages = self.copied
        ends = pages[:, :1] + pages[:, 1:]
        ends = ends[np.argsort(ends[:, 0])]
        return bool((ends[1:, 0] < ends[:-1, 1]).any())


def slot_map(
    blocks: Ids, count: int, page_tokens: int, block_tokens: int, position: int = 0, tokens: range | None = None
) -> SlotMap:
    """Of one request.

    Args:
        blocks: its block table, or a piece of it; with token-slot caches its slots.
        count: pages.
        page_tokens: tokens of a page.
        block_tokens: tokens of a block.
        position: of the first page's token 0, counted from the table's first token; below 0 if the page begins
            before the table does.
        tokens: which tokens are copied, counted from the table's first one; by default all of these pages. They may
            begin and end inside a page.

    Raises:
        TypeError: block ids that are not integers on the host.
        ValueError: ids below 0 or of more than 31 bits, tokens that the table does not have.
    """
    table = _ids(blocks)
    ends = position + count * page_tokens
    tokens = range(position, ends) if tokens is None else tokens
    if min(count, page_tokens - 1, block_tokens - 1) < 0 or tokens.step != 1:
        raise ValueError("pages and blocks have at least one token, and a range of tokens has step 1")
    if max(abs(position), abs(ends), page_tokens, len(table) * block_tokens) >= _FARTHEST:
        raise ValueError(f"tokens {position} to {ends} of {len(table)} blocks of {block_tokens}: more than 62 bits")
    tokens = tokens or range(position, position)
    if len(tokens) and not (max(0, position) <= tokens.start and tokens.stop <= min(ends, len(table) * block_tokens)):
        raise ValueError(
            f"tokens {tokens.start} to {tokens.stop}, but the {count} pages are tokens {position} to {ends}"
            f" of {len(table)} blocks of {block_tokens}"
        )
    positions = position + page_tokens * np.arange(count, dtype=np.int64)
    pages = np.stack([positions, *((edge - positions).clip(0, page_tokens) for edge in (tokens.start, tokens.stop))], 1)
    return SlotMap(page_tokens, block_tokens, table, pages)


def joined_slots(*maps: SlotMap) -> SlotMap:
    """Of several requests in one copy. Raises ValueError if their pages or blocks differ in tokens."""
    if len({(one.page_tokens, one.block_tokens) for one in maps}) != 1:
        raise ValueError("requests with pages or blocks of different sizes, or none")
    starts = np.cumsum([0, *(len(one.blocks) * one.block_tokens for one in maps)])
    pages = [one.pages + np.array([start, 0, 0]) for one, start in zip(maps, starts, strict=False)]
    skips = [one.skips.astype(np.uint8) for one in maps]
    blocks = np.concatenate([one.blocks for one in maps])
    first = maps[0]
    return SlotMap(first.page_tokens, first.block_tokens, blocks, np.concatenate(pages), np.concatenate(skips))


def _ids(blocks: Ids) -> npt.NDArray[np.int32]:
    device = getattr(blocks, "device", "cpu")
    if getattr(device, "type", "cpu") != "cpu":
        raise TypeError(f"block ids are wanted on the host, these are on {device}: they are checked before a copy")
    ids = np.asarray(blocks)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise TypeError(f"block ids are integers in one row, not {ids.dtype} of shape {ids.shape}")
    if not ids.size:
        return np.zeros(0, np.int32)
    if int(ids.min()) < 0 or int(ids.max()) >= _MOST:
        raise ValueError(f"block ids from {ids.min()} to {ids.max()}: they are 0 or more, with at most 31 bits")
    return np.array(ids, np.int32)  # our own: what was checked stays as it was
