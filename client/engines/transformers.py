"""Caches the keys and values of prompts for Hugging Face transformers on the CPU.

    prompts = PrefillCache(Client(), model, namespace_of(model, page_tokens=256))
    cached = prompts.load(prompt)                        # the first cached.tokens tokens need no computation
    for logits in prompts.prefill(prompt, cached.cache):
        ...                                              # the last logits choose the first new token
    prompts.store(prompt, cached.cache)

A page is one chunk of the prefill, and chunks begin at multiples of `page_tokens`. A run that loads some pages
therefore computes the other chunks in the same shapes as a run without a cache, and its logits are bitwise equal,
provided that both runs use the same version of torch, number of threads, kind of CPU and attention implementation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from pagetier.client.client import Client
from pagetier.client.keys import Namespace
from pagetier.client.load_or_compute import ProcessRule
from pagetier.client.paged_blocks import Blocks
from pagetier.client.store_result import StoreResult
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.page_layout import PageLayout, Rows
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache
from pagetier.shm import clock

_ROPE_BY_LENGTH = ("dynamic", "longrope")


class CachedPrompt(msgspec.Struct, frozen=True, eq=False):
    """The cached beginning of a prompt.

    Attributes:
        tokens: The number of tokens that `cache` holds, a multiple of `page_tokens`.
        cache: Their keys and values.
        pages_from_memory: The loaded pages that were in memory when they were looked up.
        pages_from_disk: The loaded pages that were only on disk when they were looked up.
    """

    tokens: int
    cache: DynamicCache
    pages_from_memory: int = 0
    pages_from_disk: int = 0


class PrefillCache:
    """Loads, computes and stores the keys and values of one model's prompts.

    A prompt is a one-dimensional tensor of token IDs on the CPU. Without a daemon every prompt is a miss, nothing is
    stored, and prefill works as usual. Thread-safe.

    Args:
        client: A client, attached or not. The caller closes it.
        model: A causal model on the CPU, in eval mode.
        namespace: The result of namespace_of(), which the caller may refine with msgspec.structs.replace (a LoRA, a
            salt).
    """

    def __init__(self, client: Client, model: PreTrainedModel, namespace: Namespace) -> None:
        self.namespace = namespace
        self._client, self._rule = client, ProcessRule()
        self._model = model
        self._layout = _page_layout(model, namespace.page_tokens)

    @property
    def page_bytes(self) -> int:
        """The size of a page in bytes."""
        return self._layout.nbytes

    def load(self, prompt: torch.Tensor, timeout: float | None = None) -> CachedPrompt:
        """Returns what is cached of a prompt, in a new cache of the caller's.

        Pages on disk are left out once prefill() has shown that computing them is faster.
        The last token is never loaded, so that the engine has one to compute.

        Args:
            prompt: The token IDs.
            timeout: Seconds to wait for pages on disk; by default the client's timeout.
        """
        with self._client.match(self.namespace.keys(prompt[:-1])) as match:
            states = self._empty_states(match.available_pages * self._layout.tokens)
            blocks, rule = self._blocks(states, match.available_pages) if states else None, self._rule.rule
            loaded = self._client.load(match, blocks, timeout=timeout, rule=rule) if blocks else 0
            from_disk = match.from_disk
        tokens = loaded * self._layout.tokens
        return CachedPrompt(tokens, self._cache_of(states, tokens), loaded - from_disk, from_disk)

    def prefill(self, prompt: torch.Tensor, cache: DynamicCache, logits_to_keep: int = 1) -> Iterator[torch.Tensor]:
        """Computes the part of a prompt that the cache lacks, and adds it to the cache.

        The caller guarantees that the cache holds the beginning of this prompt, up to the start of a page.

        Yields:
            The logits of each chunk, [tokens, vocabulary]: of its last `logits_to_keep` tokens, or of all if that is 0.
        """
        for start in range(cache.get_seq_length(), len(prompt), self._layout.tokens):
            chunk, began = prompt[start : start + self._layout.tokens], clock.now()
            logits = self._forward(chunk, cache, logits_to_keep)
            self._rule.computed(clock.now() - began, [range(start, start + len(chunk))])
            yield logits

    def store(self, prompt: torch.Tensor, cache: DynamicCache) -> StoreResult:
        """Stores the full pages of a prompt. Pages that are already cached are not read.

        The caller guarantees that prefill() filled the cache with this prompt; more tokens may follow it.

        Returns:
            The outcome of each page.

        Raises:
            ValueError: The cache holds less than the prompt, several sequences, or another model's state.
        """
        keys = self.namespace.keys(prompt)
        if not keys:
            return StoreResult(b"")
        states = _states(cache)
        self._check(states, len(keys) * self._layout.tokens)
        return self._client.store(keys, self._blocks(states, len(keys)))

    def _forward(self, chunk: torch.Tensor, cache: DynamicCache, logits_to_keep: int) -> torch.Tensor:
        with torch.no_grad():
            inputs = {"input_ids": chunk[None], "past_key_values": cache}
            return self._model(**inputs, use_cache=True, logits_to_keep=logits_to_keep).logits[0]

    def _empty_states(self, tokens: int) -> list[torch.Tensor]:
        """Returns tensors in the form of _states(), or an empty list for 0 tokens."""
        shape = self._state_shape(tokens)
        return [torch.empty(shape, dtype=self._model.dtype) for layer in self._layout.layers for _ in layer if tokens]

    def _state_shape(self, tokens: int) -> tuple[int, int, int, int]:
        rows = self._layout.layers[0][0]
        return 1, rows.heads, tokens, rows.width // self._model.dtype.itemsize

    def _blocks(self, states: list[torch.Tensor], pages: int) -> Blocks:
        """Returns the cache of a prompt as one block that has all of its tokens."""
        rows = [state.transpose(1, 2) for state in states]
        layout = engine_layouts.separate_blocks(rows[::2], rows[1::2])
        slots = slot_map([0], pages, self._layout.tokens, layout.block_tokens)
        return Blocks(PagedCache(layout, self._layout), slots)

    def _cache_of(self, states: list[torch.Tensor], tokens: int) -> DynamicCache:
        cache = DynamicCache(config=self._model.config)
        if tokens:
            for layer, (keys, values) in enumerate(zip(states[::2], states[1::2], strict=True)):
                cache.update(keys[:, :, :tokens], values[:, :, :tokens], layer)
        return cache

    def _check(self, states: list[torch.Tensor], tokens: int) -> None:
        if len(states) != 2 * len(self._layout.layers):
            raise ValueError(f"the cache holds {len(states) // 2} layers, the model has {len(self._layout.layers)}")
        least, dtype = self._state_shape(tokens), self._model.dtype
        for state in states:
            batch, heads, length, dim = state.shape
            if (batch, heads, min(length, tokens), dim) != least or state.dtype != dtype:
                raise ValueError(f"the cache holds {state.dtype} {tuple(state.shape)}, expected {dtype} {least}")


def namespace_of(model: PreTrainedModel, page_tokens: int, name: str = "") -> Namespace:
    """Returns the namespace of a model's pages, as determined by its configuration; it does not cover LoRA adapters.

    The caller guarantees that a name (with its revision on the hub) always means the same weights.

    Args:
        model: The model as it computes: its dtype is the dtype of the pages.
        page_tokens: Tokens of a page, and of a chunk of the prefill.
        name: A name for the weights; by default the name on the hub or the path that the model was loaded from.

    Raises:
        ValueError: The model has no name, or its pages depend on more than the tokens up to their end: it has rotary
            embeddings that change with the prompt's length, or layers other than full attention.
    """
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None)
    _check_attention(config, rope)
    return Namespace(
        model=name or model.name_or_path,
        revision=getattr(config, "_commit_hash", None) or "",
        dtype=str(model.dtype).removeprefix("torch."),
        page_tokens=page_tokens,
        layout=_page_layout(model, page_tokens).layout,
        rope=_canonical_json(rope),
        quantisation=_canonical_json(getattr(model.config, "quantization_config", None)),
    )


def _page_layout(model: PreTrainedModel, page_tokens: int) -> PageLayout:
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dtype = str(model.dtype).removeprefix("torch.")
    layer = tuple(Rows(kind, dtype, heads, dim * model.dtype.itemsize) for kind in ("k", "v"))
    return PageLayout(page_tokens, (layer,) * config.num_hidden_layers)


def _states(cache: DynamicCache) -> list[torch.Tensor]:
    """Returns keys and values layer by layer, each [batch, heads, tokens, dim]; an empty list for an empty cache."""
    layers = cache.layers if cache.get_seq_length() else []
    return [state for layer in layers for state in (layer.keys, layer.values)]


def _check_attention(config: Any, rope: object) -> None:
    if _depends_on_length(rope):
        raise ValueError(
            f"rotary embeddings that change with the prompt's length are not supported: {_canonical_json(rope)}"
        )
    others = {type(layer).__name__ for layer in DynamicCache(config=config).layers} - {DynamicLayer.__name__}
    if others:
        raise ValueError(f"only full attention layers are supported, not {', '.join(sorted(others))}")


def _depends_on_length(rope: object) -> bool:
    """Returns whether rotary embeddings change with the prompt's length.

    Some models have one table of settings, others have one for each kind of layer.
    """
    if not isinstance(rope, dict):
        return False
    return rope.get("rope_type") in _ROPE_BY_LENGTH or any(map(_depends_on_length, rope.values()))


def _canonical_json(settings: Any) -> str:
    """Returns settings as JSON with sorted keys, or an empty string if there are none."""
    return json.dumps(settings, sort_keys=True, default=lambda other: other.to_dict()) if settings else ""
