"""The page size that pagetier chooses for SGLang: for six models and more, and where SGLang's own choice stays."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagetier.client.engines.block_groups import BlockGroup, fill_of
from pagetier.client.engines.sglang.engine.page_size import chosen_page_tokens, token_groups
from pagetier.client.groups import FullAttention, Recurrent
from pagetier.shm.geometry import DEFAULT_FRAME_BYTES

_PAGE = Path(__file__).parents[3] / "docs" / "sglang.md"
_MIB = 1 << 20
_ENOUGH = 1 / 1.09

_SETTINGS: dict[str, Any] = {
    "page_size": None,
    "speculative_algorithm": None,
    "kv_events_config": None,
    "disaggregation_mode": "null",
    "dllm_algorithm": None,
    "pp_size": 1,
    "attn_cp_size": 1,
    "dcp_size": 1,
    "kv_cache_dtype": "auto",
    "disable_hybrid_swa_memory": False,
    "mamba_radix_cache_strategy": "extra_buffer",
    "mamba_track_interval": 256,
    "enable_int8_mamba_checkpoint": False,
    "max_total_tokens": None,
    "swa_full_tokens_ratio": None,
}


def _view(**changes: Any) -> Any:
    return SimpleNamespace(**_SETTINGS | changes)


def _model(layers: int, heads: int, dim: int, **more: Any) -> Any:
    """Returns SGLang's ModelConfig of a model in bfloat16."""
    fields: dict[str, Any] = {
        "attention_arch": SimpleNamespace(name="MHA"),
        "num_attention_layers": layers,
        "get_num_kv_heads": lambda ranks: heads // ranks,
        "head_dim": dim,
        "v_head_dim": dim,
        "is_hybrid_swa": False,
        "is_encoder_decoder": False,
        "dtype": SimpleNamespace(itemsize=2),
        "hf_config": SimpleNamespace(architectures=["LlamaForCausalLM"]),
    }
    return SimpleNamespace(**fields | more)


def _latent(layers: int, rank: int, rope: int) -> Any:
    arch = SimpleNamespace(name="MLA")
    return _model(layers, 128, 256, attention_arch=arch, kv_lora_rank=rank, qk_rope_head_dim=rope)


def _windows(layers: int, heads: int, dim: int, window: int) -> Any:
    """Returns a model of which every other layer has a window."""
    ids = range(layers)
    return _model(
        layers,
        heads,
        dim,
        is_hybrid_swa=True,
        full_attention_layer_ids=list(ids[1::2]),
        swa_attention_layer_ids=list(ids[::2]),
        get_swa_num_kv_heads=lambda ranks: heads // ranks,
        swa_head_dim=dim,
        swa_v_head_dim=dim,
        sliding_window_size=window,
    )


_STATES: Any = SimpleNamespace(full_attention_layer_ids=list(range(3, 48, 4)))
_MODELS: dict[str, tuple[Any, Any, int]] = {
    "Llama 3.1 8B": (_model(32, 8, 128), None, 64),
    "Qwen2.5 0.5B": (_model(24, 2, 64), None, 256),
    "Qwen2.5 7B": (_model(28, 4, 128), None, 128),
    "DeepSeek V3": (_latent(61, 512, 64), None, 128),
    "gemma-3-4b": (_model(34, 4, 256), None, 64),
    "Qwen3-Next": (_model(48, 2, 256), _STATES, 128),
}


def _chosen(model: Any, recurrent: Any = None, backend: str = "fa3", **changes: Any) -> int:
    return chosen_page_tokens(_view(**changes), (backend, backend), model, recurrent)


@pytest.mark.parametrize("name", _MODELS)
def test_six_models_fill_frames(name: str) -> None:
    model, recurrent, tokens = _MODELS[name]
    groups = token_groups(_view(), model, recurrent)
    assert fill_of(groups, 1) <= 1 / 7, "a page of one token fills a seventh of its frame at most"
    assert _chosen(model, recurrent) == tokens
    assert fill_of(groups, tokens) >= _ENOUGH


@pytest.mark.parametrize("name", _MODELS)
def test_the_page_of_sglang_has_the_table(name: str) -> None:
    model, recurrent, tokens = _MODELS[name]
    groups = token_groups(_view(), model, recurrent)
    (row,) = (line for line in _PAGE.read_text().splitlines() if line.startswith(f"| {name} |") and " tokens, " in line)
    before, after = fill_of(groups, 1), fill_of(groups, tokens)
    assert f"| {tokens} tokens, " in row
    memory = math.ceil(1_000_000 * sum(group.nbytes for group in groups) / after / (1 << 30))
    assert f"| {after:.0%} | {before:.0%} | {memory} GiB".replace("%", " %") in row


def test_models_in_one_arena_fill_it() -> None:
    """Each has as many tokens, and Qwen3-Next a state of 60 MiB for each page."""
    filled = {}
    for name, (model, recurrent, tokens) in _MODELS.items():
        groups = token_groups(_view(), model, recurrent)
        pages = [BlockGroup(FullAttention(1), group.nbytes * tokens) for group in groups]
        pages += [BlockGroup(Recurrent(1), 60 * _MIB)] if recurrent is not None else []
        nbytes = [page.nbytes / tokens for page in pages]
        frames = [-(-page.nbytes // DEFAULT_FRAME_BYTES) * DEFAULT_FRAME_BYTES / tokens for page in pages]
        filled[name] = (sum(nbytes), sum(frames))
    for three in combinations(filled.values(), 3):
        assert sum(used for used, _ in three) / sum(taken for _, taken in three) >= _ENOUGH


def test_a_page_is_shorter_than_a_window() -> None:
    """128 tokens would fill frames, and SGLang keeps 127 of a window of 128."""
    assert _chosen(_windows(24, 8, 64, window=129)) == 128
    assert _chosen(_windows(24, 8, 64, window=128)) == 64
    assert _chosen(_windows(24, 8, 64, window=64)) == 0


def test_windows_in_the_pool_of_full_attention_are_as_all_layers() -> None:
    model = _windows(24, 8, 64, window=64)
    assert _chosen(model, disable_hybrid_swa_memory=True) == _chosen(_model(24, 8, 64)) == 64


@pytest.mark.parametrize(("dtype", "tokens"), [("bf16", 64), ("fp8_e4m3", 128), ("nvfp4", 0), ("mxfp8", 0)])
def test_the_type_of_the_cache_counts(dtype: str, tokens: int) -> None:
    assert _chosen(_model(24, 8, 64), kv_cache_dtype=dtype) == tokens


@pytest.mark.parametrize(
    "changes",
    [
        {"page_size": 1},
        {"page_size": 16},
        {"speculative_algorithm": "EAGLE"},
        {"kv_events_config": "{}"},
        {"disaggregation_mode": "prefill"},
        {"disaggregation_mode": "decode"},
        {"dllm_algorithm": "LowConfidence"},
        {"pp_size": 2},
        {"attn_cp_size": 2},
        {"dcp_size": 2},
        {"backend": "flashmla"},
        {"backend": "aiter"},
    ],
    ids=str,
)
def test_what_leaves_the_choice_to_sglang(changes: dict[str, Any]) -> None:
    model = _MODELS["Qwen2.5 7B"][0]
    assert _chosen(model) and not _chosen(model, **changes)


def test_both_attention_backends_must_have_pages_of_any_size() -> None:
    model = _MODELS["Qwen2.5 7B"][0]
    assert chosen_page_tokens(_view(), ("fa3", "triton"), model, None)
    assert not chosen_page_tokens(_view(), ("fa3", "trtllm_mha"), model, None)


@pytest.mark.parametrize("model", [_MODELS["Qwen2.5 7B"][0], _windows(24, 8, 64, window=1025)])
def test_pools_have_room_for_pages(model: Any) -> None:
    """SGLang starts with fewer: with a page, and with pools of windows that have a page more than a window and one."""
    page = _chosen(model)
    window = 1024 if model.is_hybrid_swa else 0
    sizes = [_chosen(model, max_total_tokens=most) for most in range(1, 16 * page + 2 * window + 1)]
    first = sizes.index(page)
    assert set(sizes[:first]) == {0} and set(sizes[first:]) == {page}
    most = (first + 1) // page * page
    windowed = int(most * 0.8) // page * page
    assert most >= 16 * page and (not window or windowed > window + page)
    assert sizes[16 * page - 2] == 0


@pytest.mark.parametrize(
    "model",
    [
        _model(28, 4, 128, is_encoder_decoder=True),
        _model(28, 4, 128, hf_config=SimpleNamespace(architectures=["UnlimitedOCRForCausalLM"])),
        _model(28, 4, 128, is_hybrid_swa=True, swa_attention_layer_ids=None, full_attention_layer_ids=None),
        _model(0, 4, 128),
        _model(2, 1, 8),
    ],
    ids=["encoder", "prefill-aware windows", "windows in unknown layers", "no attention", "tiny"],
)
def test_models_that_keep_one_token(model: Any) -> None:
    assert _chosen(model) == 0


@pytest.mark.parametrize(
    ("changes", "chunk", "tokens"),
    [
        ({}, 64, 128),
        ({}, 256, 128),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, 64, 128),
        ({"mamba_radix_cache_strategy": "no_buffer"}, 64, 0),
        ({"mamba_track_interval": 64}, 64, 0),
        ({"enable_int8_mamba_checkpoint": True}, 64, 0),
        ({}, 96, 0),
    ],
)
def test_recurrent_states_are_kept_at_the_ends_of_pages(changes: dict[str, Any], chunk: int, tokens: int) -> None:
    config = SimpleNamespace(architectures=["Qwen3NextForCausalLM"], mamba_chunk_size=chunk)
    assert _chosen(_model(48, 2, 256, hf_config=config), _STATES, **changes) == tokens
