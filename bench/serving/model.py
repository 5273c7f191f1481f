"""A Llama with random weights, made from a configuration: meaningless answers, but real computing."""

from __future__ import annotations

from pathlib import Path

VOCABULARY = 8192


def make(folder: Path, *, hidden: int, layers: int, length: int) -> Path:
    """Writes the model to a new folder. Heads have 64 elements, and each has its own keys and values."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        head_dim=64,
        max_position_embeddings=length,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    return folder
