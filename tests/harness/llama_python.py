"""A Llama with the interface of llama-cpp-python 0.3.36, as far as evaluating and generating greedily uses it.

That package compiles for many minutes. What it does with sequences, contexts and tokens is done here in the same order,
with the real library.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from llama_driver import Context, Logits, Model


class LlamaContext:
    """The wrapper of a llama_context."""

    def __init__(self, *, model: Model, params: SimpleNamespace, verbose: bool) -> None:
        given = {name: value for name, value in vars(params).items() if name != "extra"}
        self.context = Context(model, **params.extra | given)
        self.ctx: int | None = self.context.pointer
        self.verbose = verbose

    def kv_cache_seq_rm(self, seq_id: int, p0: int, p1: int) -> bool:
        """Removes positions; the sequence -1 is the sequence 0."""
        return self.context.remove(max(0, seq_id), p0, p1)

    def close(self) -> None:
        """Frees the context. May be called again."""
        if self.ctx is not None:
            self.context.close()
        self.ctx = None


class Llama:
    """A model with one context, which generates greedily.

    Args:
        model: The model.
        recurrent: Whether the memory has a recurrent state.
        **params: Parameters of the context.
    """

    def __init__(self, model: Model, recurrent: bool = False, **params: Any) -> None:
        self.context_params = SimpleNamespace(n_seq_max=1, kv_unified=False, extra=params)
        self.model_path, self.verbose, self.lora_scale = str(model.path), False, 1.0
        self.n_batch, self._model, self._recurrent = int(params.get("n_batch", 64)), model, recurrent
        self._logits_all, self._lora_adapter = False, None
        self._ctx = LlamaContext(model=model, params=self.context_params, verbose=False)
        self.input_ids, self.n_tokens = np.zeros(1024, np.intc), 0
        self.computed = 0
        self.logits: Logits = np.empty(0, np.float32)

    def reset(self) -> None:
        """Forgets the tokens."""
        self.n_tokens = 0
        if self._recurrent:
            self._ctx.context.clear()

    def eval(self, tokens: Any) -> None:
        """Computes tokens after those that the sequence has."""
        self._ctx.kv_cache_seq_rm(-1, self.n_tokens, -1)
        for start in range(0, len(tokens), self.n_batch):
            batch = np.array(tokens[start : start + self.n_batch], np.int32)
            self.logits = self._ctx.context.decode(batch, self.n_tokens)
            self.input_ids[self.n_tokens : self.n_tokens + len(batch)] = batch
            self.n_tokens += len(batch)
            self.computed += len(batch)

    def generate(self, tokens: list[int]) -> Iterator[int]:
        """Yields new tokens after a prompt, of which the longest beginning that the sequence has is not computed."""
        reset = True
        if self.n_tokens > 0:
            same = zip(self.input_ids[: self.n_tokens].tolist(), tokens, strict=False)
            prefix = next((at for at, (ours, theirs) in enumerate(same) if ours != theirs), None)
            prefix = min(self.n_tokens, len(tokens) - 1) if prefix is None else prefix
            if prefix > 0 and self._ctx.kv_cache_seq_rm(-1, prefix, -1):
                reset, tokens, self.n_tokens = False, tokens[prefix:], prefix
        if reset:
            self.reset()
        while True:
            self.eval(tokens)
            tokens = [int(self.logits.argmax())]
            yield tokens[0]

    def close(self) -> None:
        """Frees the context."""
        self._ctx.close()
