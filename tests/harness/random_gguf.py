"""Writes GGUF files with small models of random weights, which have no tokenizer.

Each has the memory of a kind of models: keys and values of all tokens, a sliding window, a recurrent state, or a
recurrent state beside keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter

VOCABULARY: Final = 512
WINDOW: Final = 64
_WIDTH, _INNER, _HEADS, _KV_HEADS, _HEAD = 128, 256, 4, 2, 32
_NET_KEYS, _NET_VALUES, _EXPERT = 2, 4, 64  # heads of a delta net, and the width of an expert
_STATE_INNER, _STATE, _CONVOLUTION, _STEP_RANK = 256, 16, 4, 16

_Weights = npt.NDArray[np.float32]


class _Random:
    """Random weights, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def matrix(self, outputs: int, inputs: int, scale: float = 0.0) -> _Weights:
        weights = self._random.standard_normal((outputs, inputs)).astype(np.float32)
        return weights * np.float32(scale or inputs**-0.5)

    def attention(self, block: str, normed: Sequence[str] = ()) -> dict[str, _Weights]:
        """Returns the weights of a layer of attention."""
        sizes = {"q": _HEADS * _HEAD, "k": _KV_HEADS * _HEAD, "v": _KV_HEADS * _HEAD}
        weights = {f"{block}.attn_{name}.weight": self.matrix(size, _WIDTH) for name, size in sizes.items()}
        weights[f"{block}.attn_output.weight"] = self.matrix(_WIDTH, _HEADS * _HEAD)
        return weights | {f"{block}.attn_{name}_norm.weight": _ones(_HEAD) for name in normed}

    def feed_forward(self, block: str) -> dict[str, _Weights]:
        """Returns the weights of the norms and of the feed-forward part of a layer."""
        weights = {f"{block}.{name}_norm.weight": _ones(_WIDTH) for name in ("attn", "ffn")}
        weights |= {f"{block}.ffn_{name}.weight": self.matrix(_INNER, _WIDTH) for name in ("gate", "up")}
        return weights | {f"{block}.ffn_down.weight": self.matrix(_WIDTH, _INNER)}

    def convolution(self, block: str) -> dict[str, _Weights]:
        """Returns the weights of a layer with a short convolution."""
        sizes = {"conv": (_WIDTH, 3), "in_proj": (3 * _WIDTH, _WIDTH), "out_proj": (_WIDTH, _WIDTH)}
        return {f"{block}.shortconv.{name}.weight": self.matrix(*size) for name, size in sizes.items()}

    def mamba(self, block: str, normed: Mapping[str, int]) -> dict[str, _Weights]:
        """Returns the weights of a layer with a state space."""
        sizes = {
            "in": (2 * _STATE_INNER, _WIDTH),
            "conv1d": (_STATE_INNER, _CONVOLUTION),
            "x": (_STEP_RANK + 2 * _STATE, _STATE_INNER),
            "dt": (_STATE_INNER, _STEP_RANK),
            "out": (_WIDTH, _STATE_INNER),
        }
        weights = {f"{block}.ssm_{name}.weight": self.matrix(*size) for name, size in sizes.items()}
        weights |= {f"{block}.ssm_{name}.bias": self.matrix(1, _STATE_INNER, 0.1)[0] for name in ("conv1d", "dt")}
        weights[f"{block}.ssm_a"] = -np.tile(np.arange(1, _STATE + 1, dtype=np.float32), (_STATE_INNER, 1))
        weights[f"{block}.ssm_d"] = _ones(_STATE_INNER)
        return weights | {f"{block}.ssm_{name}_norm.weight": _ones(size) for name, size in normed.items()}

    def gated_attention(self, block: str) -> dict[str, _Weights]:
        """Returns the weights of a layer of attention with a gate, which is computed with the queries."""
        queries = {f"{block}.attn_q.weight": self.matrix(2 * _HEADS * _HEAD, _WIDTH)}
        return self.attention(block, ("q", "k")) | queries

    def delta_net(self, block: str) -> dict[str, _Weights]:
        """Returns the weights of a layer with a gated delta net."""
        keys, values = _NET_KEYS * _HEAD, _NET_VALUES * _HEAD
        sizes = {
            "attn_qkv": (2 * keys + values, _WIDTH),
            "attn_gate": (values, _WIDTH),
            "ssm_conv1d": (2 * keys + values, _CONVOLUTION),
            "ssm_ba": (2 * _NET_VALUES, _WIDTH),
            "ssm_out": (_WIDTH, values),
        }
        weights = {f"{block}.{name}.weight": self.matrix(*size) for name, size in sizes.items()}
        weights[f"{block}.ssm_norm.weight"] = _ones(_HEAD)
        return weights | {f"{block}.ssm_dt.bias": _ones(_NET_VALUES), f"{block}.ssm_a": -_ones(_NET_VALUES)}

    def experts(self, block: str) -> dict[str, _Weights]:
        """Returns the weights of the norms and of the experts of a layer, of which one is shared."""
        weights = {f"{block}.{name}_norm.weight": _ones(_WIDTH) for name in ("attn", "post_attention")}
        for name, size in {"gate": (_EXPERT, _WIDTH), "up": (_EXPERT, _WIDTH), "down": (_WIDTH, _EXPERT)}.items():
            weights[f"{block}.ffn_{name}_exps.weight"] = np.stack([self.matrix(*size) for _ in range(2)])
            weights[f"{block}.ffn_{name}_shexp.weight"] = self.matrix(*size)
        weights[f"{block}.ffn_gate_inp.weight"] = self.matrix(2, _WIDTH)
        return weights | {f"{block}.ffn_gate_inp_shexp.weight": self.matrix(1, _WIDTH)[0]}


def write_llama(path: Path, seed: int = 1) -> Path:
    """Writes a Llama, with keys and values of all tokens, and returns its path."""
    random = _Random(seed)
    with _writer(path, "llama", 2, _KV_HEADS) as writer:
        writer.add_rope_dimension_count(_HEAD)
        _add(writer, random, lambda block, _: random.feed_forward(block) | random.attention(block), 2)
        writer.add_tensor("output_norm.weight", _ones(_WIDTH))
    return path


def write_gemma3(path: Path, seed: int = 1) -> Path:
    """Writes a model whose layers have a window of WINDOW tokens, except for the last, and returns its path."""
    random = _Random(seed)

    def layer(block: str, _: int) -> dict[str, _Weights]:
        norms = {f"{block}.post_{name}_norm.weight": _ones(_WIDTH) for name in ("attention", "ffw")}
        return random.feed_forward(block) | random.attention(block, ("q", "k")) | norms

    with _writer(path, "gemma3", 6, _KV_HEADS) as writer:
        writer.add_key_length(_HEAD)
        writer.add_value_length(_HEAD)
        writer.add_sliding_window(WINDOW)
        _add(writer, random, layer, 6)
        writer.add_tensor("output_norm.weight", _ones(_WIDTH))
    return path


def write_lfm2(path: Path, seed: int = 1) -> Path:
    """Writes a model with two layers of attention and two with a short convolution, and returns its path."""
    random = _Random(seed)

    def layer(block: str, number: int) -> dict[str, _Weights]:
        mixed = random.attention(block, ("q", "k")) if number % 2 else random.convolution(block)
        return random.feed_forward(block) | mixed

    with _writer(path, "lfm2", 4, [0, _KV_HEADS, 0, _KV_HEADS]) as writer:
        writer.add_uint32("lfm2.shortconv.l_cache", 3)
        _add(writer, random, layer, 4)
        writer.add_tensor("token_embd_norm.weight", _ones(_WIDTH))
    return path


def write_jamba(path: Path, seed: int = 1) -> Path:
    """Writes a model with two layers of attention and two with a state space, and returns its path."""
    random = _Random(seed)
    normed = {"dt": _STEP_RANK, "b": _STATE, "c": _STATE}

    def layer(block: str, number: int) -> dict[str, _Weights]:
        mixed = random.attention(block) if number % 2 else random.mamba(block, normed)
        return random.feed_forward(block) | mixed

    with _writer(path, "jamba", 4, [0, _KV_HEADS, 0, _KV_HEADS]) as writer:
        _add_state_space(writer)
        _add(writer, random, layer, 4)
        writer.add_tensor("output_norm.weight", _ones(_WIDTH))
    return path


def write_qwen3next(path: Path, seed: int = 1) -> Path:
    """Writes a model with three layers of gated delta nets, one of attention, and experts, and returns its path."""
    random = _Random(seed)

    def layer(block: str, number: int) -> dict[str, _Weights]:
        mixed = random.gated_attention(block) if number % 4 == 3 else random.delta_net(block)
        return mixed | random.experts(block)

    with _writer(path, "qwen3next", 4, _KV_HEADS) as writer:
        writer.add_key_length(_HEAD)
        writer.add_value_length(_HEAD)
        writer.add_rope_dimension_count(_HEAD)
        writer.add_ssm_conv_kernel(_CONVOLUTION)
        writer.add_ssm_inner_size(_NET_VALUES * _HEAD)
        writer.add_ssm_state_size(_HEAD)
        writer.add_ssm_time_step_rank(_NET_VALUES)
        writer.add_ssm_group_count(_NET_KEYS)
        writer.add_expert_count(2)
        writer.add_expert_used_count(1)
        writer.add_expert_feed_forward_length(_EXPERT)
        writer.add_expert_shared_feed_forward_length(_EXPERT)
        _add(writer, random, layer, 4)
        writer.add_tensor("output_norm.weight", _ones(_WIDTH))
    return path


def write_mamba(path: Path, seed: int = 1) -> Path:
    """Writes a model whose layers have a state space and nothing else, and returns its path."""
    random = _Random(seed)

    def layer(block: str, _: int) -> dict[str, _Weights]:
        return {f"{block}.attn_norm.weight": _ones(_WIDTH)} | random.mamba(block, {})

    with _writer(path, "mamba", 2, 0) as writer:
        _add_state_space(writer)
        _add(writer, random, layer, 2)
        writer.add_tensor("output_norm.weight", _ones(_WIDTH))
    return path


WRITERS: Final[dict[str, Callable[[Path, int], Path]]] = {
    "llama": write_llama,
    "gemma3": write_gemma3,
    "lfm2": write_lfm2,
    "jamba": write_jamba,
    "qwen3next": write_qwen3next,
    "mamba": write_mamba,
}
"""What writes a model of each architecture."""


@contextmanager
def _writer(path: Path, architecture: str, layers: int, kv_heads: int | list[int]) -> Iterator[Any]:
    """Yields a writer that has what all models have, and writes the file at the end."""
    writer = GGUFWriter(str(path), architecture)
    writer.add_context_length(65536)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_string("tokenizer.ggml.model", "none")
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, random: _Random, layer: Callable[[str, int], dict[str, _Weights]], layers: int) -> None:
    """Adds the embeddings and all layers."""
    writer.add_tensor("token_embd.weight", random.matrix(VOCABULARY, _WIDTH, 1.0))
    for number in range(layers):
        for name, weights in layer(f"blk.{number}", number).items():
            writer.add_tensor(name, weights)


def _add_state_space(writer: Any) -> None:
    writer.add_ssm_conv_kernel(_CONVOLUTION)
    writer.add_ssm_inner_size(_STATE_INNER)
    writer.add_ssm_state_size(_STATE)
    writer.add_ssm_time_step_rank(_STEP_RANK)


def _ones(size: int) -> _Weights:
    return np.ones(size, np.float32)


def write_lora(path: Path, seed: int = 1) -> Path:
    """Writes a LoRA adapter for the Llama, of rank 4 for its queries and values, and returns its path."""
    random, writer = _Random(seed), GGUFWriter(str(path), "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for layer in range(2):
        for name, outputs in (("q", _HEADS * _HEAD), ("v", _KV_HEADS * _HEAD)):
            writer.add_tensor(f"blk.{layer}.attn_{name}.weight.lora_a", random.matrix(4, _WIDTH))
            writer.add_tensor(f"blk.{layer}.attn_{name}.weight.lora_b", random.matrix(outputs, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
