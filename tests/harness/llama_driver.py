"""Loads a GGUF model with the libllama in xllamacpp, and decodes tokens: what a host of llama.cpp does.

The structures are those of the version that constraints.txt pins: other builds have other fields.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

TYPES: Final = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}
"""The types of caches, as ggml numbers them."""

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]

_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_SILENT: Final = _LOG(lambda level, text, data: None)


class ModelParams(ctypes.Structure):
    """llama_model_params."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("devices", "tensor_buft_overrides")),
        *((name, ctypes.c_int32) for name in ("n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")),
        *((name, ctypes.c_void_p) for name in ("tensor_split", "progress", "progress_data", "kv_overrides")),
        *((name, ctypes.c_bool) for name in ("vocab_only", "check", "extra_bufts", "no_host", "no_alloc", "load_mtp")),
    )


class KvOverride(ctypes.Structure):
    """llama_model_kv_override of an integer."""

    _fields_ = (
        ("tag", ctypes.c_int32),
        ("key", ctypes.c_char * 128),
        ("value", ctypes.c_int64),
        ("rest", ctypes.c_char * 120),
    )


class ContextParams(ctypes.Structure):
    """llama_context_params."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")),
        *((name, ctypes.c_uint32) for name in ("n_outputs_max", "n_outputs_max_per_seq")),
        *((name, ctypes.c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type")),
        *((name, ctypes.c_int32) for name in ("pooling_type", "attention_type", "flash_attn_type")),
        *((name, ctypes.c_float) for name in ("rope_freq_base", "rope_freq_scale", "yarn_ext_factor")),
        *((name, ctypes.c_float) for name in ("yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")),
        ("yarn_orig_ctx", ctypes.c_uint32),
        ("defrag_thold", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("cb_eval", "cb_eval_user_data")),
        *((name, ctypes.c_int32) for name in ("type_k", "type_v")),
        ("moe_cache_size", ctypes.c_size_t),
        *((name, ctypes.c_void_p) for name in ("abort_callback", "abort_callback_data")),
        *((name, ctypes.c_bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload")),
        *((name, ctypes.c_bool) for name in ("swa_full", "kv_unified")),
        ("samplers", ctypes.c_void_p),
        ("n_samplers", ctypes.c_size_t),
        ("ctx_other", ctypes.c_void_p),
    )


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


@cache
def libllama() -> ctypes.CDLL:
    """Returns the library, which writes no log."""
    spec = find_spec("xllamacpp.xllamacpp")
    assert spec is not None and spec.origin is not None
    lib = ctypes.CDLL(spec.origin)
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    declarations: dict[str, tuple[Any, list[Any]]] = {
        "llama_log_set": (None, [_LOG, pointer]),
        "llama_model_default_params": (ModelParams, []),
        "llama_context_default_params": (ContextParams, []),
        "llama_model_load_from_file": (pointer, [ctypes.c_char_p, ModelParams]),
        "llama_model_free": (None, [pointer]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_vocab_n_tokens": (number, [pointer]),
        "llama_init_from_model": (pointer, [pointer, ContextParams]),
        "llama_free": (None, [pointer]),
        "llama_get_memory": (pointer, [pointer]),
        "llama_memory_clear": (None, [pointer, ctypes.c_bool]),
        "llama_memory_seq_rm": (ctypes.c_bool, [pointer, number, number, number]),
        "llama_memory_seq_add": (None, [pointer, number, number, number, number]),
        "llama_memory_seq_cp": (None, [pointer, number, number, number, number]),
        "llama_batch_init": (Batch, [number, number, number]),
        "llama_batch_free": (None, [Batch]),
        "llama_decode": (number, [pointer, Batch]),
        "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), [pointer, number]),
        "llama_state_seq_get_size": (ctypes.c_size_t, [pointer, number]),
        "llama_state_seq_get_data": (ctypes.c_size_t, [pointer, pointer, ctypes.c_size_t, number]),
        "llama_state_seq_set_data": (ctypes.c_size_t, [pointer, pointer, ctypes.c_size_t, number]),
        "llama_adapter_lora_init": (pointer, [pointer, ctypes.c_char_p]),
        "llama_set_adapters_lora": (number, [pointer, pointer, ctypes.c_size_t, pointer]),
    }
    for name, (result, arguments) in declarations.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.llama_log_set(_SILENT, None)
    lib.llama_backend_init()
    return lib


class Model:
    """The weights of a GGUF file, in host memory.

    Args:
        path: The file.
        **overrides: Integers that replace those of the file, with "__" for each point of their names.
    """

    def __init__(self, path: Path, **overrides: int) -> None:
        self.path, self.lib = path, libllama()
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = 0
        given = [KvOverride(0, name.replace("__", ".").encode(), value) for name, value in overrides.items()]
        ended = (KvOverride * (len(given) + 1))(*given)
        params.kv_overrides = ctypes.addressof(ended)
        self.pointer = self.lib.llama_model_load_from_file(str(path).encode(), params)
        assert self.pointer, f"llama.cpp cannot load {path}"
        self.n_vocab = int(self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.pointer)))

    def close(self) -> None:
        """Frees the weights. The contexts are closed before."""
        self.lib.llama_model_free(self.pointer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Context:
    """A context with one thread, as a host that uses pagetier makes it.

    Args:
        model: The model.
        k: The type of cached keys.
        v: The type of cached values.
        users: The sequences of the host, 0 and following; one more is for pagetier.
        **params: Fields of llama_context_params.
    """

    def __init__(self, model: Model, k: str = "f16", v: str = "f16", users: int = 1, **params: Any) -> None:
        self.model, self.lib = model, model.lib
        given = self.lib.llama_context_default_params()
        chosen = {"n_ctx": 1024, "n_batch": 256, "n_ubatch": 64, "flash_attn_type": 1, "swa_full": True}
        fixed = {"n_seq_max": users + 1, "kv_unified": True, "n_threads": 1, "n_threads_batch": 1, "no_perf": True}
        for name, value in (chosen | fixed | {"type_k": TYPES[k], "type_v": TYPES[v]} | params).items():
            assert hasattr(given, name), name
            setattr(given, name, value)
        self.pointer = self.lib.llama_init_from_model(model.pointer, given)
        assert self.pointer, f"llama.cpp makes no context of {model.path} with {params}"
        self.memory = self.lib.llama_get_memory(self.pointer)
        self.n_batch = int(given.n_batch)

    def decode(self, tokens: Tokens, start: int = 0, seq: int = 0) -> Logits:
        """Computes tokens from position `start` on, in batches of n_batch, and returns the logits of the last."""
        for at in range(0, len(tokens), self.n_batch):
            self._decode(tokens[at : at + self.n_batch], start + at, seq)
        logits = self.lib.llama_get_logits_ith(self.pointer, -1)
        return np.ctypeslib.as_array(logits, (self.model.n_vocab,)).copy()

    def state(self, seq: int = 0) -> npt.NDArray[np.uint8]:
        """Returns the state of a sequence as llama.cpp's own save does."""
        out = np.empty(self.lib.llama_state_seq_get_size(self.pointer, seq), np.uint8)
        assert self.lib.llama_state_seq_get_data(self.pointer, out.ctypes.data, out.nbytes, seq) == out.nbytes
        return out

    def restore(self, state: npt.NDArray[np.uint8], seq: int = 0) -> None:
        """Puts a saved state into a sequence."""
        assert self.lib.llama_state_seq_set_data(self.pointer, state.ctypes.data, state.nbytes, seq) == state.nbytes

    def remove(self, seq: int = 0, start: int = -1, end: int = -1) -> bool:
        """Removes positions of a sequence, all by default."""
        return bool(self.lib.llama_memory_seq_rm(self.memory, seq, start, end))

    def clear(self) -> None:
        """Removes all sequences."""
        self.lib.llama_memory_clear(self.memory, True)

    def shift(self, start: int, end: int, by: int, seq: int = 0) -> None:
        """Adds a number to positions, which is half of a context shift."""
        self.lib.llama_memory_seq_add(self.memory, seq, start, end, by)

    def use_lora(self, adapters: Sequence[Path], scales: Sequence[float]) -> None:
        """Applies adapters to what is decoded from now on."""
        loaded = [self.lib.llama_adapter_lora_init(self.model.pointer, str(path).encode()) for path in adapters]
        assert all(loaded)
        pointers = (ctypes.c_void_p * len(loaded))(*loaded)
        factors = (ctypes.c_float * len(loaded))(*scales)
        assert self.lib.llama_set_adapters_lora(self.pointer, pointers, len(loaded), factors) == 0

    def close(self) -> None:
        """Frees the context."""
        self.lib.llama_free(self.pointer)

    def _decode(self, tokens: Tokens, start: int, seq: int) -> None:
        with _batch(self.lib, len(tokens)) as batch:
            for at, token in enumerate(tokens.tolist()):
                batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, start + at, 1
                batch.seq_id[at][0], batch.logits[at] = seq, at == len(tokens) - 1
            batch.n_tokens = len(tokens)
            assert (code := self.lib.llama_decode(self.pointer, batch)) == 0, f"llama_decode() returned {code}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _batch(lib: ctypes.CDLL, tokens: int) -> Iterator[Batch]:
    batch = lib.llama_batch_init(tokens, 0, 1)
    try:
        yield batch
    finally:
        lib.llama_batch_free(batch)
