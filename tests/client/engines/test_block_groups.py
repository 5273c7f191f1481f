"""How many blocks of an engine form a page, and the fill of frames for six models, alone and together."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from pagetier.client.engines.block_groups import (
    BlockGroup,
    better_page_tokens,
    blocks_of_page,
    fill_of,
    filling_page_tokens,
)
from pagetier.client.groups import ChunkedAttention, FullAttention, Group, Recurrent, SlidingWindow
from pagetier.shm.geometry import DEFAULT_FRAME_BYTES

_KIB = 1 << 10
_MIB = 1 << 20
_BLOCKS = (16, 64, 256)
_ENOUGH = 1 / 1.09
_DESIGN = Path(__file__).parents[3] / "docs" / "design" / "frames.md"
_MOST_TOKENS = 512


def _attention(kind: Group, token_bytes: int) -> BlockGroup:
    return BlockGroup(kind, token_bytes * kind.page_tokens)


def _llama_8b(block: int) -> list[BlockGroup]:
    """Llama 3.1 8B: 32 layers of 8 heads of 128, bfloat16."""
    return [_attention(FullAttention(block), 32 * 8 * 128 * 2 * 2)]


def _qwen_half_b(block: int) -> list[BlockGroup]:
    """Qwen2.5 0.5B: 24 layers of 2 heads of 64."""
    return [_attention(FullAttention(block), 24 * 2 * 64 * 2 * 2)]


def _qwen_7b(block: int) -> list[BlockGroup]:
    """Qwen2.5 7B: 28 layers of 4 heads of 128."""
    return [_attention(FullAttention(block), 28 * 4 * 128 * 2 * 2)]


def _deepseek(block: int) -> list[BlockGroup]:
    """DeepSeek V3: 61 layers of latents of 1,152 bytes."""
    return [_attention(FullAttention(block), 61 * 1152)]


def _gemma(block: int) -> list[BlockGroup]:
    """gemma-3-4b: 34 layers of 4 heads of 256; vLLM's groups have 5 of full attention, and 5 or 4 of a window."""
    layer = 4 * 256 * 2 * 2
    windows = [_attention(SlidingWindow(block, 1024), layers * layer) for layers in (5, 5, 5, 5, 5, 4)]
    return [_attention(FullAttention(block), 5 * layer), *windows]


def _gemma_in_one_pool(page: int) -> list[BlockGroup]:
    """gemma-3-4b in SGLang, which keeps all tokens of its windows."""
    return [_attention(FullAttention(page), 34 * 4 * 256 * 2 * 2)]


def _gpt_oss(page: int) -> list[BlockGroup]:
    """gpt-oss-20b in SGLang: a pool of 12 layers of full attention, and one of 12 of a window."""
    layer = 8 * 64 * 2 * 2
    return [_attention(FullAttention(page), 12 * layer), _attention(SlidingWindow(page, 128), 12 * layer)]


def _qwen3_next(block: int) -> list[BlockGroup]:
    """Qwen3-Next: 12 layers of attention with 2 heads of 256, and 36 of recurrent state, 60 MiB in 3 groups.

    vLLM makes its blocks so long that those of attention take as many bytes as a state, whatever length was asked for.
    """
    layer, state = 2 * 256 * 2 * 2, 20 * _MIB
    aligned = -(-state // (12 * layer) // block) * block
    return [_attention(FullAttention(aligned), 12 * layer), *[BlockGroup(Recurrent(aligned), state)] * 3]


_MODELS = {
    "Llama 3.1 8B": _llama_8b,
    "Qwen2.5 0.5B": _qwen_half_b,
    "Qwen2.5 7B": _qwen_7b,
    "DeepSeek V3": _deepseek,
    "gemma-3-4b": _gemma,
    "Qwen3-Next": _qwen3_next,
}


def _table() -> list[tuple[str, int, float, int, float]]:
    """Returns for each model and block size the fill with pages of one block, the tokens of a page, and its fill."""
    rows = []
    for name, groups_of in _MODELS.items():
        for block in _BLOCKS:
            groups = groups_of(block)
            blocks = blocks_of_page(groups)
            tokens = blocks * groups[0].kind.page_tokens
            rows.append((name, block, fill_of(groups, 1), tokens, fill_of(groups, blocks)))
    return rows


def test_six_models_fill_frames_with_each_block_size() -> None:
    before = {(name, block): fill for name, block, fill, _, _ in _table()}
    assert min(before.values()) < 0.2, "pages of one block fill a fifth of an arena of Qwen2.5 0.5B"
    for name, block, fill_before, tokens, fill in _table():
        assert fill >= max(_ENOUGH, fill_before), f"{name} in blocks of {block}"
        assert tokens % block == 0
        assert name == "Qwen3-Next" or tokens <= _MOST_TOKENS


def test_the_design_has_the_table() -> None:
    rows = {name: f"| {name} |" for name in _MODELS}
    for name, _, before, tokens, fill in _table():
        rows[name] += f" {tokens}: {before:.0%} → {fill:.0%} |".replace("%", " %")
    text = _DESIGN.read_text()
    assert [row for row in rows.values() if row not in text] == []


def test_smaller_frames_are_filled_too() -> None:
    for groups_of in _MODELS.values():
        for block in _BLOCKS:
            groups = groups_of(block)
            fills = [fill_of(groups, blocks_of_page(groups), DEFAULT_FRAME_BYTES >> shift) for shift in range(5)]
            assert fills == sorted(fills) and fills[0] >= _ENOUGH


def test_models_in_one_arena_waste_no_more_and_write_no_more() -> None:
    """Three models with equal shares of the frames, and what a disk of the same slots writes for a byte of pages."""
    for names in combinations(_MODELS, 3):
        for block in _BLOCKS:
            fills = [fill_of(groups, blocks_of_page(groups)) for groups in (_MODELS[name](block) for name in names)]
            assert sum(fills) / 3 >= 0.88 and 3 / sum(fills) <= 1.1, (names, block)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_smallest_number_that_fills_enough(seed: int) -> None:
    numbers = random.Random(seed)
    block = numbers.choice([16, 32, 64])
    groups = [_attention(FullAttention(block), numbers.randrange(2048, 1 << 18)) for _ in range(numbers.randint(1, 3))]
    chosen = blocks_of_page(groups)
    assert fill_of(groups, chosen) >= _ENOUGH, (seed, groups)
    assert all(fill_of(groups, fewer) < _ENOUGH for fewer in range(1, chosen)), (seed, groups)


def test_pages_are_no_longer_than_a_window_or_a_part_of_a_chunk() -> None:
    narrow = [_attention(SlidingWindow(16, 40), 12 * _KIB)]
    assert blocks_of_page(narrow) == 1, "two blocks fill too little, and three are freed before they are complete"
    assert blocks_of_page([_attention(SlidingWindow(16, 80), 12 * _KIB)]) == 5
    chunks = [_attention(ChunkedAttention(16, 8192), 12 * _KIB)]
    assert blocks_of_page(chunks) == 16, "80 tokens do not divide a chunk"


def test_a_recurrent_state_is_kept_at_any_block() -> None:
    assert blocks_of_page([_attention(FullAttention(16), 12 * _KIB), BlockGroup(Recurrent(16), 192 * _KIB)]) == 1


def test_models_that_cannot_fill_three_quarters_of_a_frame_keep_pages_of_a_block() -> None:
    assert blocks_of_page([_attention(FullAttention(16), 1024)]) == 1
    assert blocks_of_page([_attention(FullAttention(16), 1600)]) == _MOST_TOKENS // 16


def test_long_blocks_are_pages() -> None:
    assert blocks_of_page([_attention(FullAttention(1024), 1024 + 64)]) == 1


@pytest.mark.parametrize(
    ("groups_of", "size"),
    [
        (_llama_8b, 64),
        (_qwen_half_b, 256),
        (_qwen_7b, 128),
        (_deepseek, 128),
        (_gemma_in_one_pool, 64),
        (_gpt_oss, 128),
    ],
)
def test_an_engine_with_pages_of_a_token_is_given_a_page_size(
    groups_of: Callable[[int], list[BlockGroup]], size: int
) -> None:
    groups = groups_of(1)
    assert fill_of(groups, 1) < 0.2 and better_page_tokens(groups) == size
    assert fill_of(groups, size) >= _ENOUGH


def test_a_page_size_is_not_longer_than_a_window() -> None:
    def groups_of(window: int) -> list[BlockGroup]:
        return [_attention(FullAttention(1), 24 * _KIB), _attention(SlidingWindow(1, window), 24 * _KIB)]

    assert [better_page_tokens(groups_of(window)) for window in (128, 127, 63)] == [128, 64, 0]
    assert filling_page_tokens(groups_of(127)) == 64, "three quarters"
    thin = [_attention(FullAttention(1), 1024)]
    assert (better_page_tokens(thin), filling_page_tokens(thin)) == (512, 0)


def test_pages_that_fill_frames_are_not_remarked() -> None:
    assert not better_page_tokens(_llama_8b(16))
    assert not better_page_tokens(_llama_8b(1024))
    assert better_page_tokens(_qwen_half_b(48)) == 0, "no power of two is a multiple of 48"
