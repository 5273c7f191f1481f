"""Chooses how many blocks of an engine form a page, so that pages fill the daemon's frames.

A page takes whole frames, so that a page that is small, or a little larger than some frames, wastes memory and disk.
The choice depends on the model and its blocks only: engines share pages if they choose alike, also on other hosts, and
whether or not a daemon runs when they start. Pages that fill frames of the default size fill all smaller ones, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from pagetier.client.groups import ChunkedAttention, Group, Recurrent, SlidingWindow
from pagetier.shm.geometry import DEFAULT_FRAME_BYTES

_ENOUGH: Final = 1 / 1.09  # a disk writes slots of frames and, for each page, its record: 1.1 times the bytes at most
_LEAST: Final = 0.75  # below it hits of coarser pages would be lost for nothing: the model needs smaller frames
_MOST_TOKENS: Final = 512
_PAGE_TOKENS: Final = (64, 128, 256, 512)  # with shorter pages an engine that looks up each page takes more time


class BlockGroup(msgspec.Struct, frozen=True):
    """The blocks of a layer group.

    Attributes:
        kind: Its kind. `page_tokens` is the number of tokens in a block.
        nbytes: The bytes of a page of one block, of all ranks.
    """

    kind: Group
    nbytes: int

    def allows(self, blocks: int) -> bool:
        """Returns whether the engine has the state of a page of so many blocks when it has computed the page.

        It frees blocks that are outside of a window, and at the end of a chunk all blocks of the chunk. It keeps a
        recurrent state at the last end of a block in a prompt, wherever that is.
        """
        tokens = blocks * self.kind.page_tokens
        match self.kind:
            case SlidingWindow(window=window):
                return tokens <= window
            case ChunkedAttention(chunk=chunk):
                return chunk % tokens == 0
            case Recurrent():
                return blocks == 1
            case _:
                return True


def blocks_of_page(groups: Sequence[BlockGroup]) -> int:
    """Returns how many blocks form a page in each group: the fewest whose frames take 1.09 times their bytes or less.

    If even pages of 512 tokens take more, it is the number that fills most; if that is less than 75 %, it is 1.
    """
    longest = max(group.kind.page_tokens for group in groups)
    counts = range(2, _MOST_TOKENS // longest + 1)
    allowed = [1, *(count for count in counts if all(group.allows(count) for group in groups))]
    fills = {count: fill_of(groups, count) for count in allowed}
    enough = next((count for count, fill in fills.items() if fill >= _ENOUGH), 0)
    best = max(allowed, key=lambda count: fills[count])
    return enough or (best if fills[best] >= _LEAST else 1)


def better_page_tokens(groups: Sequence[BlockGroup]) -> int:
    """Returns the tokens of a page that an engine's user should choose; 0 if its pages fill three quarters already.

    Args:
        groups: The groups whose pages grow with their tokens, with the pages of the engine as blocks.
    """
    tokens = groups[0].kind.page_tokens
    longer = [page // tokens for page in _PAGE_TOKENS if page > tokens and page % tokens == 0]
    counts = [count for count in longer if all(group.allows(count) for group in groups)]
    fills = {count: fill_of(groups, count) for count in counts}
    if fill_of(groups, 1) >= _LEAST or not fills:
        return 0
    return tokens * next(
        (count for count in counts if fills[count] >= _ENOUGH), max(counts, key=lambda one: fills[one])
    )


def filling_page_tokens(groups: Sequence[BlockGroup]) -> int:
    """Returns better_page_tokens(), but 0 if such pages fill less than three quarters, too."""
    tokens = better_page_tokens(groups)
    return tokens if tokens and fill_of(groups, tokens // groups[0].kind.page_tokens) >= _LEAST else 0


def fill_of(groups: Sequence[BlockGroup], blocks: int, frame_bytes: int = DEFAULT_FRAME_BYTES) -> float:
    """Returns the share of their frames that pages of so many blocks fill, where each group has a page of each token.

    Args:
        groups: The groups.
        blocks: The blocks of a page.
        frame_bytes: The bytes of a frame.
    """
    pages = [(blocks * group.nbytes, group.kind.page_tokens) for group in groups]
    nbytes = sum(size / tokens for size, tokens in pages)
    return nbytes / sum(-(-size // frame_bytes) * frame_bytes / tokens for size, tokens in pages)
