"""The state of a sequence in pages: each is read from, and put back through, a sequence of its own.

A page is what llama.cpp reads of a sequence that has the page's tokens only. Where layers keep more than one state for
each token, because they have a window or are recurrent, PARTIAL_ONLY reads their part alone. It is the end of what is
read of all layers, so that a page has two halves that no byte of the format was parsed for.
"""

from __future__ import annotations

from enum import Enum
from hashlib import sha256
from typing import Final

import numpy as np

from pagetier.client.engines.llama_cpp.context import Flags, LlamaContext, State
from pagetier.client.engines.unsupported import UnsupportedError

_HEADER: Final = 8
"""Bytes before the content of a state, which PARTIAL_ONLY repeats."""

_PROBED: Final = (1, 2)
_FAR: Final = 4000


class Kind(Enum):
    """How the memory of a model behaves."""

    PLAIN = "plain"
    WINDOW = "window"
    HYBRID = "hybrid"
    RECURRENT = "recurrent"


class PagedState:
    """Reads and writes pages of the host's sequences. The last sequence of the context is reserved for it.

    Args:
        context: The context. The last sequence is empty.
        page_tokens: The number of tokens in a page.

    Attributes:
        context: The context.
        kind: How the memory of the model behaves.
        page_tokens: The number of tokens in a page.

    Raises:
        UnsupportedError: The context or the model cannot be paged. The message says what to set. No call was made that
            could end the process.
    """

    def __init__(self, context: LlamaContext, page_tokens: int) -> None:
        _check(context)
        self.context, self.page_tokens = context, page_tokens
        self.kind = _kind_of(context)
        self._scratch = context.n_seq_max - 1
        self._buffer = np.empty(0, np.uint8)
        self._probed_sizes: list[tuple[int, int]] = []
        self._empty = self._content(Flags.PARTIAL_ONLY) if self.split else np.empty(0, np.uint8)
        self._check_split(self._computed())

    @property
    def split(self) -> bool:
        """Whether a page has a second half: a window, or a recurrent state beside attention."""
        return self.kind in (Kind.WINDOW, Kind.HYBRID)

    @property
    def empty_part(self) -> State:
        """What stands for a second half that a hit does not need."""
        return self._empty

    def probe(self) -> str:
        """Returns a digest of the state of two tokens at a far position.

        It changes with all that changes the state: weights, RoPE in force, LoRA adapters, control vectors, the types
        and the order of the cache, the rounding of a build and its backend. The number of the sequence in the state
        depends on `n_seq_max` and is masked.
        """
        words = self._computed()
        self.context.remove(self._scratch)
        words = np.pad(words, (0, -len(words) % 4)).view("<u4")
        masked = np.where((words == 1) | (words == self._scratch), 0, words)
        return sha256(masked.tobytes()).hexdigest()[:32]

    def whole_before(self, seq: int, position: int) -> bool:
        """Returns whether a sequence has all state that the token at a position needs.

        That a recurrent state is the one of this position is for remove() to say.
        """
        first = self.context.first(seq)
        match self.kind:
            case Kind.PLAIN:
                return first == 0
            case Kind.WINDOW:
                return 0 <= first <= max(0, position - self.context.window)
            case _:
                return first >= 0

    def sizes_of(self, tokens: int) -> tuple[int, int]:
        """Returns the bytes of the two halves of a page of so many tokens, if no layer is recurrent."""
        one, two = self._probed_sizes
        base, part = (first + (tokens - 1) * (second - first) for first, second in zip(one, two, strict=True))
        return base, part

    def page_size(self, seq: int, page: int) -> tuple[int, int]:
        """Returns the bytes of the two halves of a page of a sequence."""
        self._select(seq, page)
        return self._sizes()

    def read(self, seq: int, page: int) -> tuple[State, State]:
        """Returns the two halves of a page of a sequence. They are valid until the next call."""
        self._select(seq, page)
        base, part = self._sizes()
        whole = self.buffer(base + part)
        complete = self.context.get_into(whole, self._scratch)
        self.context.remove(self._scratch)
        return (whole[:base], whole[base:]) if complete else (whole[:0], whole[:0])

    def write(self, seq: int, state: State) -> bool:
        """Adds a page to a sequence, after the pages before it. The caller calls end_write() after the last one.

        Returns:
            Whether llama.cpp took it.
        """
        taken = self.context.set(state, self._scratch)
        if taken:
            self.context.share(self._scratch, seq)
        return taken

    def end_write(self) -> None:
        """Leaves the pages that were written to their sequence alone."""
        self.context.remove(self._scratch)

    def buffer(self, nbytes: int) -> State:
        """Returns memory that the next call returns again: fresh memory costs more than a copy."""
        if len(self._buffer) < nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        return self._buffer[:nbytes]

    def _select(self, seq: int, page: int) -> None:
        """Puts the tokens of a page into the scratch sequence."""
        start = page * self.page_tokens
        self.context.remove(self._scratch)
        self.context.share(seq, self._scratch, start, start + self.page_tokens)

    def _sizes(self) -> tuple[int, int]:
        whole = self.context.size(self._scratch)
        part = self.context.size(self._scratch, Flags.PARTIAL_ONLY) - _HEADER if self.split else 0
        return whole - part, part

    def _content(self, flags: Flags) -> State:
        return self.context.get(self._scratch, flags)[_HEADER:]

    def _computed(self) -> State:
        """Returns the state of two tokens, and leaves it in the scratch sequence."""
        self.context.remove(self._scratch)
        position = max(0, min(_FAR, self.context.n_ctx_train - len(_PROBED)))
        self._probed_sizes.clear()
        for offset, token in enumerate(_PROBED):
            self.context.decode(token, position + offset, self._scratch)
            self._probed_sizes.append(self._sizes())
        return self._content(Flags.WHOLE)

    def _check_split(self, whole: State) -> None:
        """Raises UnsupportedError unless the two halves are what is assumed, and can be put back."""
        part = self._content(Flags.PARTIAL_ONLY) if self.split else np.empty(0, np.uint8)
        if self.split and not (len(part) < len(whole) and np.array_equal(whole[len(whole) - len(part) :], part)):
            raise UnsupportedError("the state of this model does not split into layers with and without a window")
        state = self.context.get(self._scratch)
        base = state[: len(state) - len(part)]
        restored = self.context.set(state, self._scratch) and np.array_equal(self.context.get(self._scratch), state)
        alone = not self.split or self.context.set(np.concatenate([base, self._empty]), self._scratch)
        self.context.remove(self._scratch)
        if not (restored and alone):
            raise UnsupportedError("llama.cpp does not restore the state of this model")


def _kind_of(context: LlamaContext) -> Kind:
    if context.recurrent:
        return Kind.RECURRENT
    if context.hybrid:
        return Kind.HYBRID
    return Kind.WINDOW if context.window else Kind.PLAIN


def _check(context: LlamaContext) -> None:
    if not context.has_memory:
        raise UnsupportedError("the context keeps no state of tokens: embedding models have nothing to cache")
    if context.n_seq_max < 2:
        raise UnsupportedError("no sequence is left for pagetier: set n_seq_max to one more than the host uses")
    if context.n_ctx_seq != context.n_ctx:
        raise UnsupportedError("each sequence has a cache of its own: set kv_unified = true")
    if context.hybrid and context.window:
        raise UnsupportedError("models with a window beside a recurrent state are not cached")
    if context.encodes or not context.causal:
        raise UnsupportedError("the state of a token depends on later tokens or on an encoder: it cannot be shared")
    if context.length(context.n_seq_max - 1):
        raise UnsupportedError(
            f"sequence {context.n_seq_max - 1} is in use: set n_seq_max to one more than the host uses"
        )
