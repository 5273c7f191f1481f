"""Writes a GGUF file with a small Llama of random weights, which has no tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter

VOCABULARY: Final = 512
_LAYERS, _WIDTH, _INNER, _HEADS, _KV_HEADS, _HEAD = 2, 128, 256, 4, 2, 32


def write_llama(path: Path, seed: int = 1) -> Path:
    """Writes the model, and returns its path."""
    random = np.random.default_rng(seed)
    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(65536)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_rope_dimension_count(_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_string("tokenizer.ggml.model", "none")
    for name, tensor in _tensors(random).items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(random: np.random.Generator) -> dict[str, npt.NDArray[np.float32]]:
    def weights(outputs: int, inputs: int) -> npt.NDArray[np.float32]:
        return random.standard_normal((outputs, inputs)).astype(np.float32) * np.float32(inputs**-0.5)

    tensors = {"token_embd": random.standard_normal((VOCABULARY, _WIDTH)).astype(np.float32)}
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        tensors |= {f"{block}.{name}": np.ones(_WIDTH, np.float32) for name in ("attn_norm", "ffn_norm")}
        tensors[f"{block}.attn_q"] = weights(_HEADS * _HEAD, _WIDTH)
        tensors |= {f"{block}.attn_{name}": weights(_KV_HEADS * _HEAD, _WIDTH) for name in "kv"}
        tensors[f"{block}.attn_output"] = weights(_WIDTH, _HEADS * _HEAD)
        tensors |= {f"{block}.ffn_{name}": weights(_INNER, _WIDTH) for name in ("gate", "up")}
        tensors[f"{block}.ffn_down"] = weights(_WIDTH, _INNER)
    return tensors | {"output_norm": np.ones(_WIDTH, np.float32)}
