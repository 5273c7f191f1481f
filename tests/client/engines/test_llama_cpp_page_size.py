"""How many batches of llama.cpp form a page, and what its pages fill of their frames, for seven models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from pagetier.client.engines.block_groups import BlockGroup, fill_of
from pagetier.client.engines.llama_cpp.page_groups import batches_of_page, filling_page_tokens
from pagetier.client.engines.llama_cpp.paged_state import Kind
from pagetier.client.groups import FullAttention, SlidingWindow

_BATCH: Final = 512
_LONG: Final = 8192
_CELL_BYTES: Final = 12
_LAYER_BYTES: Final = 24
_DESIGN: Final = Path(__file__).parents[3] / "docs" / "design" / "frames.md"


def batch_of(layers: int, token_bytes: int, window: int = 0, tokens: int = _BATCH) -> BlockGroup:
    """Returns the state of a batch in f16, with what llama.cpp puts before it."""
    kind = SlidingWindow(tokens, window) if window else FullAttention(tokens)
    return BlockGroup(kind, tokens * (token_bytes + _CELL_BYTES) + layers * _LAYER_BYTES)


MODELS: Final = {
    "Llama 3.1 8B": [batch_of(32, 32 * 4096)],
    "Qwen2.5 0.5B": [batch_of(24, 24 * 512)],
    "Qwen2.5 7B": [batch_of(28, 28 * 2048)],
    "DeepSeek V3": [batch_of(61, 61 * 1152)],
    "gemma-3-4b": [batch_of(5, 5 * 4096), batch_of(29, 29 * 4096, 1024)],
    "Gemma 3 270M": [batch_of(3, 3 * 1024), batch_of(15, 15 * 1024, 512)],
    "Qwen3-Next": [batch_of(12, 12 * 2048)],
}


@pytest.mark.parametrize("name", MODELS)
def test_pages_fill_their_frames_and_the_design_says_how_much(name: str) -> None:
    count = 1 if name == "Qwen3-Next" else batches_of_page(MODELS[name], _LONG)
    fill = fill_of(MODELS[name], count)
    assert fill >= 0.88
    sizes = " and ".join(f"{count * batch.nbytes / (1 << 20):.1f}".removesuffix(".0") for batch in MODELS[name])
    assert f"| {name} | {count * _BATCH:,} | {sizes} MiB | {fill:.0%} |".replace("%", " %") in _DESIGN.read_text()


def test_the_fewest_batches_that_fill_enough_are_taken() -> None:
    assert fill_of(MODELS["Qwen2.5 0.5B"], 1) < 0.86
    assert batches_of_page(MODELS["Qwen2.5 0.5B"], _LONG) == 2
    assert batches_of_page(MODELS["gemma-3-4b"], _LONG) == 1
    assert batches_of_page([batch_of(24, 24 * 512, tokens=128)], _LONG) == 3


def test_a_context_has_at_least_four_pages_of_several_batches() -> None:
    chosen = [batches_of_page(MODELS["Qwen2.5 0.5B"], tokens) for tokens in (256, 512, 4095, 4096)]
    assert chosen == [1, 1, 1, 2]


def test_a_page_is_not_longer_than_a_window() -> None:
    def batches(window: int) -> int:
        return batches_of_page([batch_of(24, 24 * 512, window)], _LONG)

    assert [batches(window) for window in (1023, 1024)] == [1, 2]


def test_a_model_that_fills_no_three_quarters_of_a_frame_keeps_short_pages() -> None:
    assert batches_of_page([batch_of(2, 700)], _LONG) == 1
    assert batches_of_page([batch_of(2, 790, tokens=256)], _LONG) == 4, "77 % of a frame"


@pytest.mark.parametrize(
    ("kind", "tokens"), [(Kind.PLAIN, 1024), (Kind.WINDOW, 1024), (Kind.HYBRID, 512), (Kind.RECURRENT, 512)]
)
def test_pages_with_a_recurrent_state_are_one_batch(kind: Kind, tokens: int) -> None:
    halves = (6 << 20) + 7000, (6 << 20) + 7000 if kind is not Kind.PLAIN else 0
    context = SimpleNamespace(n_ubatch=_BATCH, n_ctx_seq=_LONG, window=1024)
    state: Any = SimpleNamespace(kind=kind, context=context, sizes_of=lambda _: halves)
    assert filling_page_tokens(state) == tokens
