"""The pages of six models in an engine, in bfloat16 on one rank, and the frames that they can be put into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from pagetier.client.engines.block_groups import BlockGroup, blocks_of_page, fill_of
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from pagetier.shm.geometry import DEFAULT_FRAME_BYTES

BLOCKS: Final = (16, 64, 256)
_FRAMES: Final = tuple(1 << shift for shift in range(16, 23))
_ENOUGH: Final = 0.88
_LEAST_FILL: Final = 0.75  # an arena that wastes more is remarked in the log
_ENTRY_BYTES: Final = 315  # of index and lock words for each frame, docs/sizing.md
_LARGEST_INDEX: Final = 0.0005  # of a disk


class Layout(msgspec.Struct, frozen=True):
    """Pages of a model in frames.

    Attributes:
        groups: The groups of the model, with pages of one block.
        blocks: The blocks of a page.
        frame_bytes: The bytes of a frame.
    """

    groups: tuple[BlockGroup, ...]
    blocks: int
    frame_bytes: int

    @property
    def fill(self) -> float:
        """The share of their frames that the pages fill."""
        return fill_of(self.groups, self.blocks, self.frame_bytes)

    @property
    def index_fits(self) -> bool:
        """Whether the index over a disk takes at most 0.05 % of it."""
        return _LARGEST_INDEX * self.frame_bytes >= _ENTRY_BYTES

    @property
    def kinds(self) -> list[Group]:
        """The groups, with these pages."""
        tokens = self.page_tokens
        return [msgspec.structs.replace(group.kind, page_tokens=tokens) for group in self.groups]

    @property
    def page_bytes(self) -> list[int]:
        """The bytes of a page of each group."""
        return [self.blocks * group.nbytes for group in self.groups]

    @property
    def page_tokens(self) -> int:
        """The tokens of a page."""
        return self.blocks * self.groups[0].kind.page_tokens

    def __str__(self) -> str:
        return f"pages of {self.page_tokens} tokens in frames of {self.frame_bytes >> 10} KiB"


def chosen(groups: list[BlockGroup]) -> Layout:
    """Returns the pages that an engine chooses, in frames of the default size."""
    return Layout(tuple(groups), blocks_of_page(groups), DEFAULT_FRAME_BYTES)


def fixed(ours: Layout) -> list[Layout]:
    """Returns the layouts that cost least among those with frames of another size, the best for a disk first.

    These are pages of one block in the largest frames that they fill to 88 %, and in the largest that they fill to
    three quarters, and the chosen pages in the largest of these frames, in the next larger, and in much smaller ones.
    """
    single = [msgspec.structs.replace(ours, blocks=1, frame_bytes=size) for size in reversed(_FRAMES)]
    full, loose = (next(one for one in single if one.fill >= least) for least in (_ENOUGH, _LEAST_FILL))
    sizes = [size for size in reversed(_FRAMES) if size != ours.frame_bytes]
    same = [msgspec.structs.replace(ours, frame_bytes=size) for size in sizes]
    larger = next(one for one in same if one.fill >= _LEAST_FILL)
    twice = msgspec.structs.replace(ours, frame_bytes=2 * ours.frame_bytes)
    return [one for one in dict.fromkeys((full, larger, loose, twice, same[-1])) if one != ours]


def _attention(kind: Group, token_bytes: int) -> BlockGroup:
    return BlockGroup(kind, token_bytes * kind.page_tokens)


def _gemma(block: int) -> list[BlockGroup]:
    layer = 4 * 256 * 2 * 2
    windows = [_attention(SlidingWindow(block, 1024), layers * layer) for layers in (5, 5, 5, 5, 5, 4)]
    return [_attention(FullAttention(block), 5 * layer), *windows]


def _qwen3_next(block: int) -> list[BlockGroup]:
    layer, state = 2 * 256 * 2 * 2, 20 << 20
    aligned = -(-state // (12 * layer) // block) * block
    return [_attention(FullAttention(aligned), 12 * layer), *[BlockGroup(Recurrent(aligned), state)] * 3]


def _full(token_bytes: int) -> Callable[[int], list[BlockGroup]]:
    return lambda block: [_attention(FullAttention(block), token_bytes)]


MODELS: Final[dict[str, Callable[[int], list[BlockGroup]]]] = {
    "Llama 3.1 8B": _full(32 * 8 * 128 * 2 * 2),
    "Qwen2.5 0.5B": _full(24 * 2 * 64 * 2 * 2),
    "Qwen2.5 7B": _full(28 * 4 * 128 * 2 * 2),
    "DeepSeek V3": _full(61 * 1152),
    "gemma-3-4b": _gemma,
    "Qwen3-Next": _qwen3_next,
}
"""The groups of each model in blocks of so many tokens, as vLLM makes them."""
