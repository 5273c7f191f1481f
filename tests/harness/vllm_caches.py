"""Caches in the shapes that vLLM gives to its connectors, with their specifications, without vLLM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

BLOCKS, LAYERS, HEADS, WIDTH, TOKENS = 24, 3, 2, 8, 16


@dataclass(frozen=True)
class FullAttentionSpec:
    block_size: int = TOKENS
    num_kv_heads: int = HEADS
    dcp_sharded: bool = True
    non_causal: bool = False


@dataclass(frozen=True)
class MLAAttentionSpec:
    block_size: int = TOKENS
    num_kv_heads: int = 1
    tokens_per_state: int = 1


@dataclass(frozen=True)
class SlidingWindowSpec:
    block_size: int = TOKENS
    sliding_window: int = 3 * TOKENS
    extra_retained_tokens: int = 0
    num_kv_heads: int = HEADS


@dataclass(frozen=True)
class MambaSpec:
    block_size: int = TOKENS
    mamba_cache_mode: str = "align"
    num_speculative_blocks: int = 0


@dataclass(frozen=True)
class ChunkedLocalAttentionSpec:
    block_size: int = TOKENS
    attention_chunk_size: int = 64


@dataclass(frozen=True)
class UniformTypeKVCacheSpecs:
    block_size: int
    kv_cache_specs: dict[str, Any]


@dataclass
class VllmCache:
    """A cache. `page` returns by plain indexing what a block contains in all layers. `fill` writes random content."""

    spec: Any
    layers: Sequence[Any]
    axis: int = 0
    smaller: int = 1

    def page(self, block: int) -> list[torch.Tensor]:
        first, last = block * self.smaller, (block + 1) * self.smaller
        return [tensor.narrow(self.axis, first, last - first).clone() for tensor in self._tensors()]

    def put(self, block: int, seed: int) -> None:
        """Writes other content to a block, the same for the same seed."""
        chance = torch.Generator().manual_seed(seed)
        for tensor in self._tensors():
            part = tensor.narrow(self.axis, block * self.smaller, self.smaller)
            part.copy_(_random(part.shape, tensor.dtype, chance))

    def fill(self, seed: int) -> None:
        for block in range(BLOCKS):
            self.put(block, seed * BLOCKS + block)

    def _tensors(self) -> list[torch.Tensor]:
        return [tensor for layer in self.layers for tensor in (layer if isinstance(layer, list) else [layer])]


def _random(shape: Sequence[int], dtype: torch.dtype, chance: torch.Generator) -> torch.Tensor:
    return torch.randint(-100, 100, tuple(shape), generator=chance).to(dtype)


def _views(shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """Returns one view per layer of a single allocation, as vLLM does since 0.30."""
    return list(torch.zeros((LAYERS, *shape), dtype=dtype))


def heads_first(storage: list[torch.Tensor] | None = None, spec: Any = None) -> VllmCache:
    shape = (BLOCKS, HEADS, TOKENS, 2 * WIDTH)
    return VllmCache(spec or FullAttentionSpec(), storage or _views(shape))


def tokens_first_in_memory() -> VllmCache:
    layers = [tensor.transpose(1, 2) for tensor in _views((BLOCKS, TOKENS, HEADS, 2 * WIDTH))]
    return VllmCache(FullAttentionSpec(), layers)


def layers_in_blocks() -> VllmCache:
    whole = torch.zeros((BLOCKS, LAYERS, HEADS, TOKENS, 2 * WIDTH), dtype=torch.bfloat16)
    return VllmCache(FullAttentionSpec(), [whole[:, layer] for layer in range(LAYERS)])


def smaller_blocks() -> VllmCache:
    """Returns a cache whose kernels use blocks with half as many tokens as vLLM's."""
    shape = (2 * BLOCKS, HEADS, TOKENS // 2, 2 * WIDTH)
    return VllmCache(FullAttentionSpec(), _views(shape), smaller=2)


def kv_first() -> VllmCache:
    return VllmCache(FullAttentionSpec(), _views((2, BLOCKS, TOKENS, HEADS, WIDTH)), axis=1)


def kv_second() -> VllmCache:
    return VllmCache(FullAttentionSpec(), _views((BLOCKS, 2, TOKENS, HEADS, WIDTH)))


def latents() -> VllmCache:
    return VllmCache(MLAAttentionSpec(), _views((BLOCKS, TOKENS, 40)))


def latents_with_a_head() -> VllmCache:
    return VllmCache(MLAAttentionSpec(), _views((BLOCKS, 1, TOKENS, 40)))


def padded_states(storage: torch.Tensor | None = None) -> VllmCache:
    """Returns one tensor of bytes per layer, shorter than the page that contains it."""
    page = HEADS * TOKENS * 2 * WIDTH * 2
    whole = torch.zeros((LAYERS, BLOCKS, page), dtype=torch.int8) if storage is None else storage
    return VllmCache(MambaSpec(), [layer[:, : page - 48].unflatten(1, (1, 1, -1)) for layer in whole])


def listed_states() -> VllmCache:
    """Returns several tensors of several types per layer, as vLLM does up to 0.29."""

    def layer() -> list[torch.Tensor]:
        return [torch.zeros((BLOCKS, 3, 32), dtype=torch.bfloat16), torch.zeros((BLOCKS, 4, 8, 8))]

    return VllmCache(MambaSpec(), [layer() for _ in range(LAYERS)])


CACHES: dict[str, Callable[[], VllmCache]] = {
    function.__name__.replace("_", " "): function
    for function in (
        heads_first,
        tokens_first_in_memory,
        layers_in_blocks,
        smaller_blocks,
        kv_first,
        kv_second,
        latents,
        latents_with_a_head,
        padded_states,
        listed_states,
    )
}


def aliased() -> tuple[VllmCache, VllmCache, VllmCache]:
    """Returns three groups that share all of their memory: attention, a sliding window, and states."""
    whole = torch.zeros((LAYERS, BLOCKS, HEADS * TOKENS * 2 * WIDTH * 2), dtype=torch.int8)
    views = whole.view(torch.bfloat16).view(LAYERS, BLOCKS, HEADS, TOKENS, 2 * WIDTH)
    window = SlidingWindowSpec()
    return heads_first(list(views)), heads_first(list(views), window), padded_states(whole)
