"""A context of llama.cpp: what its model is, and the state of its sequences."""

from __future__ import annotations

from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from pagetier.client.engines.llama_cpp.library import Libllama
from pagetier.client.engines.unsupported import UnsupportedError

State = npt.NDArray[np.uint8]
"""The state of a sequence in llama.cpp's own format, which nothing here reads."""

TO_THE_END: Final = -1


class Flags(int, Enum):
    """What llama.cpp reads of a sequence: all of its state, or the part that is not one state a token."""

    WHOLE = 0
    PARTIAL_ONLY = 1


class LlamaContext:
    """A llama_context of the host. It is not thread-safe, and the host frees it after its last use here.

    Args:
        lib: The library that made the context.
        pointer: The address of the llama_context.

    Attributes:
        n_ctx: The cells of the context.
        n_ctx_seq: The cells that one sequence may use: all of them if the sequences share one cache.
        n_seq_max: The number of sequences.
        n_ubatch: The most tokens that are computed at once.
        n_ctx_train: The number of positions that the model was trained with.
        window: The window of the layers with sliding-window attention; 0 without such layers.
        recurrent: Whether all layers have a recurrent state.
        hybrid: Whether some layers have a recurrent state and others attention.
    """

    def __init__(self, lib: Libllama, pointer: int) -> None:
        self._lib, self._pointer = lib, pointer
        self._memory = lib.get_memory(pointer)
        self._model = lib.get_model(pointer)
        self.n_ctx, self.n_ctx_seq = int(lib.n_ctx(pointer)), int(lib.n_ctx_seq(pointer))
        self.n_seq_max, self.n_ubatch = int(lib.n_seq_max(pointer)), int(lib.n_ubatch(pointer))
        self.n_ctx_train = int(lib.model_n_ctx_train(self._model))
        self.window = int(lib.model_n_swa(self._model))
        self.recurrent, self.hybrid = bool(lib.model_is_recurrent(self._model)), bool(lib.model_is_hybrid(self._model))

    @property
    def build(self) -> str:
        """The version of llama.cpp, as far as the build knows it, and the instructions that it uses."""
        version = self._lib.version().decode() if self._lib.version else ""
        return f"{version} {self._lib.print_system_info().decode()}".strip()

    @property
    def causal(self) -> bool:
        """Whether the state of a token depends on the tokens before it only."""
        causal = self._lib.get_causal_attn is None or self._lib.get_causal_attn(self._pointer)
        return bool(causal) and not self._lib.model_is_diffusion(self._model)

    @property
    def encodes(self) -> bool:
        """Whether the model has an encoder, on whose input the state of the decoder depends."""
        return bool(self._lib.model_has_encoder(self._model))

    @property
    def has_memory(self) -> bool:
        """Whether the context keeps state between decodes, which those of embedding models do not."""
        return bool(self._memory)

    def first(self, seq: int) -> int:
        """Returns the first position from which on all state of a sequence is present; -1 if it is empty."""
        return int(self._lib.memory_seq_pos_min(self._memory, seq))

    def length(self, seq: int) -> int:
        """Returns the position after the last one of a sequence."""
        return int(self._lib.memory_seq_pos_max(self._memory, seq)) + 1

    def remove(self, seq: int, start: int = 0, end: int = TO_THE_END) -> bool:
        """Removes positions of a sequence, all by default. Returns False if the model's state cannot be cut there."""
        return bool(self._lib.memory_seq_rm(self._memory, seq, start or -1, end))

    def share(self, source: int, target: int, start: int = 0, end: int = TO_THE_END) -> None:
        """Adds positions of a sequence to another one, which uses the same cells. The cache must be unified."""
        self._lib.memory_seq_cp(self._memory, source, target, start or -1, end)

    def size(self, seq: int, flags: Flags = Flags.WHOLE) -> int:
        """Returns the size of the state of a sequence in bytes."""
        return int(self._lib.state_seq_get_size_ext(self._pointer, seq, flags))

    def get(self, seq: int, flags: Flags = Flags.WHOLE) -> State:
        """Returns the state of a sequence."""
        out = np.empty(self.size(seq, flags), np.uint8)
        self.get_into(out, seq, flags)
        return out

    def get_into(self, out: State, seq: int, flags: Flags = Flags.WHOLE) -> bool:
        """Copies the state of a sequence, and returns whether it had the size of `out`."""
        nbytes = self._lib.state_seq_get_data_ext(self._pointer, out.ctypes.data, out.nbytes, seq, flags)
        return bool(nbytes == out.nbytes)

    def set(self, state: State, seq: int) -> bool:
        """Replaces the state of a sequence. Returns False, and the sequence is empty, if llama.cpp rejects it."""
        nbytes = self._lib.state_seq_set_data_ext(self._pointer, state.ctypes.data, state.nbytes, seq, Flags.WHOLE)
        return bool(0 < nbytes == state.nbytes)  # of bytes that are no state it reads none

    def decode(self, token: int, position: int, seq: int) -> None:
        """Computes one token without logits.

        Raises:
            UnsupportedError: llama.cpp reports an error.
        """
        batch = self._lib.batch_init(1, 0, 1)
        try:
            batch.token[0], batch.pos[0], batch.n_seq_id[0], batch.logits[0] = token, position, 1, 0
            batch.seq_id[0][0], batch.n_tokens = seq, 1
            code = self._lib.decode(self._pointer, batch)
        finally:
            self._lib.batch_free(batch)
        if code:
            raise UnsupportedError(f"llama_decode() returned {code} for one token: leave some cells of n_ctx free")
