"""The cache of prompts of one context of llama.cpp."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from pagetier.client.client import Client
from pagetier.client.engines.llama_cpp.context import LlamaContext
from pagetier.client.engines.llama_cpp.hosts import Library, context_of
from pagetier.client.engines.llama_cpp.library import Libllama
from pagetier.client.engines.llama_cpp.loads import PageLoads
from pagetier.client.engines.llama_cpp.page_groups import filling_page_tokens, page_groups
from pagetier.client.engines.llama_cpp.paged_state import PagedState
from pagetier.client.engines.llama_cpp.sequence_tokens import SequenceTokens
from pagetier.client.engines.llama_cpp.stores import PageStores
from pagetier.client.hashing import Tokens

_ATTACH_S: Final = 0.2  # a program that starts and asks at once finds what is cached


class PromptCache:
    """Loads and stores the state of prompts of one llama_context.

    The sequences of the context are the host's, except for the last one. The thread that uses the context calls the
    cache, between two calls of llama_decode(). Without a daemon, or after it, nothing is loaded and stored, and the
    host computes as usual.

    Logits after a hit equal those of a run without a cache bit by bit, if both decode prompts in batches of a multiple
    of `n_ubatch` tokens, and if models with a window run with `swa_full`. Otherwise they differ by rounding, as with
    llama.cpp's own saved states.

    Args:
        llama: The address of a llama_context, or a Llama of llama-cpp-python (see enable()). The context has
            `kv_unified = true`, and `n_seq_max` is one more than the host uses.
        library: The libllama that made it: a ctypes handle, or its path. A Llama needs none.
        model_files: The GGUF files of the model, all shards. A Llama needs none.
        client: The client; by default one that close() closes.
        page_tokens: The number of tokens in a page, a multiple of `n_ubatch`; by default as many as fill frames.
        salt: A text that separates tenants.

    Attributes:
        client: The client.
        groups: The groups of pages with their namespaces, for Client.flush() and the like.

    Raises:
        UnsupportedError: The context or the model cannot be cached. The message says what to set.
        TypeError: The address of a context was given without its library or its files.
        OSError: A model file cannot be read.
    """

    def __init__(
        self,
        llama: Any,
        *,
        library: Library | None = None,
        model_files: Sequence[str | os.PathLike[str]] = (),
        client: Client | None = None,
        page_tokens: int = 0,
        salt: str = "",
    ) -> None:
        host = context_of(llama, library, model_files)
        self._context = LlamaContext(Libllama(host.library), host.pointer)
        self._state = PagedState(self._context, page_tokens or self._context.n_ubatch)
        if not page_tokens:
            self._state.page_tokens = filling_page_tokens(self._state)
        self._own_client = client is None
        self.client = Client() if client is None else client
        self._files, self._salt = host.model_files, salt
        self._sequences: dict[int, SequenceTokens] = {}
        self._loads, self._stores = PageLoads(self.client, self._state), PageStores(self.client, self._state)
        self.groups = page_groups(self._state, self._files, salt)
        self.client.wait_attached(_ATTACH_S)

    @property
    def page_tokens(self) -> int:
        """The number of tokens in a page. Every hit is a multiple of it."""
        return self._state.page_tokens

    def load(self, tokens: Tokens, seq: int = 0, present: int = 0, timeout: float | None = None) -> int:
        """Puts the longest cached beginning of a prompt into a sequence, and returns its number of tokens.

        The host decodes the rest, from that position on. The last token is never loaded, since its logits are needed.
        What the sequence held before is removed, except for its first `present` tokens if the cache has no more.

        Args:
            tokens: The prompt. A negative ID stands for an image or the like: such a prompt is neither loaded nor
                stored.
            seq: The sequence.
            present: The number of first tokens of the prompt that the sequence has already.
            timeout: Seconds to wait for pages on disk and in the fleet; by default the client's timeout.

        Returns:
            The number of tokens of the sequence, which the host need not decode.
        """
        self._check(seq)
        wanted = self._sequences[seq] = SequenceTokens.of(tokens, self.groups)
        return self._loads.load(wanted, seq, present, timeout)

    def store(self, tokens: Tokens | None = None, seq: int = 0) -> int:
        """Stores the pages of a sequence that were decoded since the last call, and returns how many.

        A recurrent state exists only after the last decoded token, and that of a window only for a while: the host
        calls this after each batch, as prefill() does. The host removes no positions from the middle of a sequence
        before this call (a context shift): after that it calls load(), or forget().

        Args:
            tokens: The tokens of the sequence from its first position on; by default those of the last load().
            seq: The sequence.

        Returns:
            The number of stored pages of all groups.
        """
        self._check(seq)
        decoded = self._sequences.get(seq)
        if tokens is not None:
            decoded = SequenceTokens.of(tokens, self.groups) if decoded is None else decoded.grown(tokens)
            self._sequences[seq] = decoded
        return self._stores.store(decoded, seq) if decoded is not None else 0

    def prefill(self, tokens: Tokens, seq: int = 0, present: int = 0, timeout: float | None = None) -> Iterator[range]:
        """Loads a prompt, and stores what the host decodes of the rest.

        Args:
            tokens: The prompt.
            seq: The sequence.
            present: The number of first tokens of the prompt that the sequence has already.
            timeout: Seconds to wait for pages on disk and in the fleet; by default the client's timeout.

        Yields:
            The positions of the next batch, which the host decodes before it continues.
        """
        start, total = self.load(tokens, seq, present, timeout), len(np.asarray(tokens))
        batch = self._context.n_ubatch
        step = self.page_tokens if self.page_tokens % batch else batch
        while start < total:
            end = min(total, start // step * step + step)
            yield range(start, end)
            self.store(seq=seq)
            start = end

    def forget(self, seq: int = 0) -> None:
        """Stores nothing more of a sequence until its next load(), after the host has changed its positions."""
        self._sequences.pop(seq, None)

    def renew(self) -> None:
        """Determines the namespace again, after the host has changed LoRA adapters or control vectors.

        The sequences keep the state that was computed before: it is not stored any more until their next load().
        """
        self._sequences.clear()
        self.groups = page_groups(self._state, self._files, self._salt)

    def close(self) -> None:
        """Loads and stores nothing more, and closes the client if the cache made it.

        The host may free the context before or after.
        """
        self._sequences.clear()
        self.groups = []
        if self._own_client:
            self.client.close()

    def _check(self, seq: int) -> None:
        if not 0 <= seq < self._context.n_seq_max - 1:
            raise ValueError(f"sequence {seq} is not the host's: those are 0 to {self._context.n_seq_max - 2}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
