"""Models with random weights, made from a configuration: meaningless answers, but real computing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 8192
WINDOW = 512


Recipe = Callable[..., Path]
"""Writes a model to a new folder and returns it. Heads have 64 elements, and each has its own keys and values."""


def llama(folder: Path, *, hidden: int, layers: int, length: int) -> Path:
    """Makes a model with full attention in every layer."""
    from transformers import LlamaConfig

    return _save(folder, LlamaConfig(**_common(hidden, layers, length)))


def gemma(folder: Path, *, hidden: int, layers: int, length: int) -> Path:
    """Makes a hybrid: every second layer has a window of 512 tokens."""
    from transformers import Gemma3TextConfig

    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    own = {"layer_types": kinds, "sliding_window": WINDOW, "query_pre_attn_scalar": 64}
    return _save(folder, Gemma3TextConfig(**_common(hidden, layers, length), **own))


def _common(hidden: int, layers: int, length: int) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": hidden * 3,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 64,
        "head_dim": 64,
        "max_position_embeddings": length,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _save(folder: Path, config: Any) -> Path:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    return folder
