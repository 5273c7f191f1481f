"""The prompt cache of a Llama of llama-cpp-python, whose calls then load and store by themselves."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import proxy

import numpy as np

from pagetier.client.client import Client
from pagetier.client.engines.llama_cpp.hosts import package_library
from pagetier.client.engines.llama_cpp.prompt_cache import PromptCache
from pagetier.client.engines.unsupported import UnsupportedError


def enable(
    llama: Any,
    *,
    client: Client | None = None,
    page_tokens: int = 0,
    salt: str = "",
    library: ctypes.CDLL | None = None,
) -> PromptCache:
    """Turns pagetier on in a Llama: its prompts are loaded from the cache, and what it computes is stored.

    Its own prefix match stays: the cache is asked for what follows. A Llama has one sequence, and pagetier needs
    another one. The context is therefore made again with `n_seq_max = 2` and `kv_unified = true`, which takes the
    memory of both contexts for a moment, and forgets what the first one computed. Prompts with images are computed as
    before.

    Args:
        llama: The Llama. Its `n_batch` should be a multiple of its `n_ubatch`.
        client: The client; by default one that the cache closes.
        page_tokens: The number of tokens in a page, a multiple of `n_ubatch`; by default as many as fill frames.
        salt: A text that separates tenants.
        library: The libllama that the Llama uses; by default that of its package.

    Returns:
        The cache. Closing it turns pagetier off, and the Llama computes as before.

    Raises:
        UnsupportedError: The Llama or its model cannot be cached. The message says what to set.
        OSError: A model file cannot be read.
    """
    if getattr(llama, "_logits_all", False):
        raise UnsupportedError("loaded tokens have no logits: make the Llama without logits_all")
    lib = library if library is not None else package_library()
    _make_room(llama, lib)
    cache = PromptCache(llama, library=lib, client=client, page_tokens=page_tokens, salt=salt)
    llama.eval = CachedEval(llama, cache)
    return cache


class CachedEval:
    """Evaluates tokens in place of Llama.eval(), and does not compute those that are cached.

    Args:
        llama: The Llama.
        cache: The cache of its context.
    """

    def __init__(self, llama: Any, cache: PromptCache) -> None:
        self._llama: Any = proxy(llama)  # a cycle would keep the model until the next collection
        self._cache = cache
        self._compute = partial(type(llama).eval, self._llama)
        self._known = 0

    def __call__(self, tokens: Sequence[int]) -> None:
        """Evaluates tokens after the first `n_tokens` of the Llama, as Llama.eval() does.

        What others have put into the sequence, such as images, has no tokens: what follows it is computed.
        """
        start = int(self._llama.n_tokens)
        if start > self._known:
            self._cache.forget()
            self._compute(tokens)
            return
        if self._pages(start + len(tokens) - 1) > self._pages(start):
            self._prefill(start, np.asarray(tokens, np.int32))
        else:
            self._compute(tokens)
        self._known = int(self._llama.n_tokens)
        if self._known % self._cache.page_tokens == 0:
            self._cache.store(self._llama.input_ids[: self._known])

    def _pages(self, tokens: int) -> int:
        return tokens // self._cache.page_tokens

    def _prefill(self, start: int, tokens: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        prompt = np.concatenate([np.asarray(self._llama.input_ids[:start], np.int32), tokens])
        for batch in self._cache.prefill(prompt, present=start):
            self._llama.input_ids[: batch.start] = prompt[: batch.start]
            self._llama.n_tokens = batch.start
            self._compute(prompt[batch.start : batch.stop].tolist())


def _make_room(llama: Any, lib: ctypes.CDLL) -> None:
    """Replaces the context by one with a sequence for pagetier, and with the same settings otherwise."""
    params = llama.context_params
    if params.n_seq_max > 1 and params.kv_unified:
        return
    params.n_seq_max, params.kv_unified = max(2, params.n_seq_max), True
    former = llama._ctx
    llama._ctx = type(former)(model=llama._model, params=params, verbose=llama.verbose)
    if (adapter := getattr(llama, "_lora_adapter", None)) is not None:
        _apply_lora(lib, llama._ctx.ctx, adapter, llama.lora_scale)
    llama.reset()
    former.close()


def _apply_lora(lib: ctypes.CDLL, context: Any, adapter: Any, scale: float) -> None:
    own = ctypes.CDLL(lib._name, handle=lib._handle)
    adapters, scales = (ctypes.c_void_p * 1)(_pointer(adapter)), (ctypes.c_float * 1)(scale)
    if own.llama_set_adapters_lora(_pointer(context), adapters, ctypes.c_size_t(1), scales):
        raise UnsupportedError("llama.cpp does not apply the LoRA adapter to the new context")


def _pointer(of: Any) -> ctypes.c_void_p:
    """Returns the pointer to a context or an adapter, which the package keeps as an address or as a typed pointer."""
    return ctypes.cast(of, ctypes.c_void_p)
