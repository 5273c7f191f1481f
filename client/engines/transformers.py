"""Hugging Face transformers on the CPU: the keys and values of a prompt, as pages and back.

    prompts = PromptCache(Client(), model, namespace_of(model, page_tokens=256))
    cached = prompts.load(prompt)                        # cached.tokens of the prompt need no computing
    for logits in prompts.prefill(prompt, cached.cache):
        ...                                              # the last ones choose the first new token
    prompts.store(prompt, cached.cache)

A page is one chunk of prefill, and chunks begin at multiples of `page_tokens`. So a run that loads some
pages computes the other chunks just as a run without a cache does, in the same shapes, and its logits are
equal bit by bit, provided that both compute alike: the same torch, threads, kind of CPU and attention.
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
from pagetier.client.paged_blocks import Blocks
from pagetier.client.reservation import StoreResult
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.page_layout import PageLayout, Rows
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache

_ROPE_BY_LENGTH = ("dynamic", "longrope")


class CachedPrompt(msgspec.Struct, frozen=True, eq=False):
    """The beginning of a prompt: `cache` holds its first `tokens` tokens, a multiple of `page_tokens`.

    pages_from_disk: those of them that were on disk alone when they were looked for; pages_from_memory: the others.
    """

    tokens: int
    cache: DynamicCache
    pages_from_memory: int = 0
    pages_from_disk: int = 0


class PromptCache:
    """The prompts of one model, with their keys and values in pagetier.

    A prompt is a tensor of token ids, of one dimension, on the CPU. Without a daemon nothing is found and
    nothing stored, and prefill goes on as ever. May be used by several threads.

    Args:
        client: attached or not; it stays the caller's.
        model: a causal model on the CPU, in eval mode.
        namespace: from namespace_of(), perhaps with more said (msgspec.structs.replace: a LoRA, a salt).
    """

    def __init__(self, client: Client, model: PreTrainedModel, namespace: Namespace) -> None:
        self.namespace = namespace
        self._client = client
        self._model = model
        self._order = _page_order(model, namespace.page_tokens)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self._order.nbytes

    def load(self, prompt: torch.Tensor, timeout: float | None = None) -> CachedPrompt:
        """What is cached of a prompt, in a cache of its own. The last token is always left to the engine.

        timeout: seconds to wait for pages on disk; by default the client's.
        """
        with self._client.match(self.namespace.keys(prompt[:-1])) as match:
            states = self._empty_states(match.available_pages * self._order.tokens)
            loaded = (
                self._client.load(match, self._blocks(states, match.available_pages), timeout=timeout) if states else 0
            )
            from_disk = match.from_disk
        tokens = loaded * self._order.tokens
        return CachedPrompt(tokens, self._cache_of(states, tokens), loaded - from_disk, from_disk)

    def prefill(self, prompt: torch.Tensor, cache: DynamicCache, logits_to_keep: int = 1) -> Iterator[torch.Tensor]:
        """Computes the part of a prompt that the cache lacks, and adds it to the cache.

        The caller guarantees that the cache holds the beginning of this prompt, up to the start of a page.

        Yields the logits of each chunk, (tokens, vocabulary): of its last `logits_to_keep` tokens, 0: of all.
        """
        for start in range(cache.get_seq_length(), len(prompt), self._order.tokens):
            yield self._forward(prompt[start : start + self._order.tokens], cache, logits_to_keep)

    def store(self, prompt: torch.Tensor, cache: DynamicCache) -> StoreResult:
        """Stores the full pages of a prompt. What is present already is not even read.

        The caller guarantees that prefill() filled the cache with this prompt; it may hold more behind it.
        Raises ValueError for a cache that holds less, several sequences, or another model's state.
        """
        keys = self.namespace.keys(prompt)
        if not keys:
            return StoreResult(b"")
        states = _states(cache)
        self._check(states, len(keys) * self._order.tokens)
        return self._client.store(keys, self._blocks(states, len(keys)))

    def _forward(self, chunk: torch.Tensor, cache: DynamicCache, logits_to_keep: int) -> torch.Tensor:
        with torch.no_grad():
            inputs = {"input_ids": chunk[None], "past_key_values": cache}
            return self._model(**inputs, use_cache=True, logits_to_keep=logits_to_keep).logits[0]

    def _empty_states(self, tokens: int) -> list[torch.Tensor]:
        """As _states; none for no tokens."""
        shape = self._state_shape(tokens)
        return [torch.empty(shape, dtype=self._model.dtype) for layer in self._order.layers for _ in layer if tokens]

    def _state_shape(self, tokens: int) -> tuple[int, int, int, int]:
        rows = self._order.layers[0][0]
        return 1, rows.heads, tokens, rows.width // self._model.dtype.itemsize

    def _blocks(self, states: list[torch.Tensor], pages: int) -> Blocks:
        """The cache of a prompt is one block of as many tokens as it has."""
        rows = [state.transpose(1, 2) for state in states]
        layout = engine_layouts.separate_blocks(rows[::2], rows[1::2])
        slots = slot_map([0], pages, self._order.tokens, layout.block_tokens)
        return Blocks(PagedCache(layout, self._order), slots)

    def _cache_of(self, states: list[torch.Tensor], tokens: int) -> DynamicCache:
        cache = DynamicCache(config=self._model.config)
        if tokens:
            for layer, (keys, values) in enumerate(zip(states[::2], states[1::2], strict=True)):
                cache.update(keys[:, :, :tokens], values[:, :, :tokens], layer)
        return cache

    def _check(self, states: list[torch.Tensor], tokens: int) -> None:
        if len(states) != 2 * len(self._order.layers):
            raise ValueError(f"the cache holds {len(states) // 2} layers, not {len(self._order.layers)}")
        least, dtype = self._state_shape(tokens), self._model.dtype
        for state in states:
            batch, heads, length, dim = state.shape
            if (batch, heads, min(length, tokens), dim) != least or state.dtype != dtype:
                raise ValueError(f"the cache holds {state.dtype} {tuple(state.shape)}, not {dtype} {least}")


def namespace_of(model: PreTrainedModel, page_tokens: int, name: str = "") -> Namespace:
    """The namespace of a model's pages, as far as its configuration tells; it knows of no LoRA.

    The caller guarantees that a name (with its revision on the hub) means the same weights for ever.

    Args:
        model: as it computes: its dtype is that of the pages.
        page_tokens: tokens in a page, and in a chunk of prefill.
        name: which weights; by default the hub's name or the path that the model was loaded from.

    Raises ValueError for a model without a name, and for one whose pages would depend on more than the tokens up to
    their end: rotary embeddings that change with the prompt's length, layers other than full attention.
    """
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None)
    _check_attention(config, rope)
    return Namespace(
        model=name or model.name_or_path,
        revision=getattr(config, "_commit_hash", None) or "",
        dtype=str(model.dtype).removeprefix("torch."),
        page_tokens=page_tokens,
        layout=_page_order(model, page_tokens).layout,
        rope=_spelt(rope),
        quantisation=_spelt(getattr(model.config, "quantization_config", None)),
    )


def _page_order(model: PreTrainedModel, page_tokens: int) -> PageLayout:
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dtype = str(model.dtype).removeprefix("torch.")
    layer = tuple(Rows(kind, dtype, heads, dim * model.dtype.itemsize) for kind in ("k", "v"))
    return PageLayout(page_tokens, (layer,) * config.num_hidden_layers)


def _states(cache: DynamicCache) -> list[torch.Tensor]:
    """Keys and values, layer by layer, (batch, head, token, dim) each; none of a cache that holds nothing."""
    layers = cache.layers if cache.get_seq_length() else []
    return [state for layer in layers for state in (layer.keys, layer.values)]


def _check_attention(config: Any, rope: object) -> None:
    if _depends_on_length(rope):
        raise ValueError(f"rotary embeddings that change with the prompt's length have no pages: {_spelt(rope)}")
    others = {type(layer).__name__ for layer in DynamicCache(config=config).layers} - {DynamicLayer.__name__}
    if others:
        raise ValueError(f"only layers of full attention can be paged here, not {', '.join(sorted(others))}")


def _depends_on_length(rope: object) -> bool:
    """Some models have one table of settings, some have one for each kind of layer."""
    if not isinstance(rope, dict):
        return False
    return rope.get("rope_type") in _ROPE_BY_LENGTH or any(map(_depends_on_length, rope.values()))


def _spelt(settings: Any) -> str:
    """Settings in one spelling; nothing for none."""
    return json.dumps(settings, sort_keys=True, default=lambda other: other.to_dict()) if settings else ""
