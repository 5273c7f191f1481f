"""The model of the demo: a Llama with random weights, the same in every process. Nothing is downloaded."""

from __future__ import annotations

import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SEED = 7
NAME = f"pagetier/demo-llama-{SEED}"
CONFIG = {
    "vocab_size": 256,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
# Large enough to show seconds of prefill on a large host, too.
_MOST_THREADS = 4


def build() -> LlamaForCausalLM:
    """Returns the model in float32 and eval mode. It computes the same in every process of this host."""
    torch.set_num_threads(min(_MOST_THREADS, len(os.sched_getaffinity(0))))
    torch.use_deterministic_algorithms(mode=True)
    torch.utils.deterministic.fill_uninitialized_memory = (
        False  # it takes a tenth of the time, and only helps to find bugs
    )
    torch.manual_seed(SEED)
    return LlamaForCausalLM(LlamaConfig(**CONFIG)).eval()
