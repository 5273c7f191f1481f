"""The tokens of a GGUF model as text, and text as its tokens."""

from __future__ import annotations

import codecs
import ctypes

import numpy as np

from llama_driver import Model, Tokens

_NO_VOCABULARY = 0
_LONGEST_PIECE = 256
_SPECIAL = (True, False)  # tokens at the start of a text are added; none is read from the text


class Vocabulary:
    """The vocabulary of a model. One without a vocabulary takes bytes for tokens, and its answers are numbers."""

    def __init__(self, model: Model) -> None:
        lib = model.lib
        lib.llama_vocab_type.argtypes = [ctypes.c_void_p]
        lib.llama_vocab_is_eog.restype = ctypes.c_bool
        lib.llama_vocab_is_eog.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        lib.llama_tokenize.argtypes = [
            *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32),
            *(ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool, ctypes.c_bool),
        ]
        lib.llama_token_to_piece.argtypes = [
            *(ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_bool),
        ]
        self._lib, self._pointer = lib, lib.llama_model_get_vocab(model.pointer)
        self._bytes_only = lib.llama_vocab_type(self._pointer) == _NO_VOCABULARY
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def tokens_of(self, text: str) -> Tokens:
        """Returns the tokens of a prompt."""
        encoded = text.encode()
        if self._bytes_only:
            return np.frombuffer(encoded, np.uint8).astype(np.int32)
        out = np.empty(len(encoded) + 8, np.int32)
        count = self._lib.llama_tokenize(self._pointer, encoded, len(encoded), out.ctypes.data, len(out), *_SPECIAL)
        return out[:count]

    def piece_of(self, token: int) -> str:
        """Returns the text of a new token. A character of several tokens comes with its last one."""
        if self._bytes_only:
            return f"{token} "
        buffer = ctypes.create_string_buffer(_LONGEST_PIECE)
        length = self._lib.llama_token_to_piece(self._pointer, token, buffer, _LONGEST_PIECE, 0, 0)
        return self._decoder.decode(buffer.raw[: max(0, length)])

    def ends(self, token: int) -> bool:
        """Whether a token ends an answer."""
        return not self._bytes_only and bool(self._lib.llama_vocab_is_eog(self._pointer, token))
