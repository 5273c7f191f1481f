"""The functions of a loaded libllama that paging needs, with their declarations."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_bool, c_char_p, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from typing import TYPE_CHECKING, Any, Final

from pagetier.client.engines.unsupported import UnsupportedError


class LlamaBatch(ctypes.Structure):
    """llama_batch, with one sequence for each token."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", ctypes.POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", ctypes.POINTER(c_int32)),
        ("n_seq_id", ctypes.POINTER(c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(c_int32))),
        ("logits", ctypes.POINTER(c_int8)),
    )


_DECLARATIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "llama_n_ctx": (c_uint32, (c_void_p,)),
    "llama_n_ctx_seq": (c_uint32, (c_void_p,)),
    "llama_n_seq_max": (c_uint32, (c_void_p,)),
    "llama_n_ubatch": (c_uint32, (c_void_p,)),
    "llama_get_model": (c_void_p, (c_void_p,)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_model_n_ctx_train": (c_int32, (c_void_p,)),
    "llama_model_n_swa": (c_int32, (c_void_p,)),
    "llama_model_is_recurrent": (c_bool, (c_void_p,)),
    "llama_model_is_hybrid": (c_bool, (c_void_p,)),
    "llama_model_is_diffusion": (c_bool, (c_void_p,)),
    "llama_model_has_encoder": (c_bool, (c_void_p,)),
    "llama_memory_seq_rm": (c_bool, (c_void_p, c_int32, c_int32, c_int32)),
    "llama_memory_seq_cp": (None, (c_void_p, c_int32, c_int32, c_int32, c_int32)),
    "llama_memory_seq_pos_min": (c_int32, (c_void_p, c_int32)),
    "llama_memory_seq_pos_max": (c_int32, (c_void_p, c_int32)),
    "llama_state_seq_get_size_ext": (c_size_t, (c_void_p, c_int32, c_uint32)),
    "llama_state_seq_get_data_ext": (c_size_t, (c_void_p, c_void_p, c_size_t, c_int32, c_uint32)),
    "llama_state_seq_set_data_ext": (c_size_t, (c_void_p, c_void_p, c_size_t, c_int32, c_uint32)),
    "llama_batch_init": (LlamaBatch, (c_int32, c_int32, c_int32)),
    "llama_batch_free": (None, (LlamaBatch,)),
    "llama_decode": (c_int32, (c_void_p, LlamaBatch)),
    "llama_print_system_info": (c_char_p, ()),
}
_OPTIONAL: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "llama_version": (c_char_p, ()),
    "llama_get_causal_attn": (c_bool, (c_void_p,)),
}


class Libllama:
    """The functions of a libllama that the host has loaded. The declarations of the host's own handle are not changed.

    Args:
        library: The host's ctypes handle, or the library's path, which stands for the loaded one.

    Raises:
        UnsupportedError: The build lacks a function that paging needs.
    """

    def __init__(self, library: ctypes.CDLL | str | os.PathLike[str]) -> None:
        own = _own_handle(library)
        for name, declaration in (_DECLARATIONS | _OPTIONAL).items():
            setattr(self, name.removeprefix("llama_"), _declared(own, name, *declaration))
        self._handle = own

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def _own_handle(library: ctypes.CDLL | str | os.PathLike[str]) -> ctypes.CDLL:
    if isinstance(library, ctypes.CDLL):
        return ctypes.CDLL(library._name, handle=library._handle)
    return ctypes.CDLL(os.fspath(library))


def _declared(handle: ctypes.CDLL, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
    """Returns a function with its declaration; None if it may be absent and is."""
    try:
        function = getattr(handle, name)
    except AttributeError:
        if name in _OPTIONAL:
            return None
        raise UnsupportedError(f"this build of llama.cpp has no {name}(): take one of November 2025 or later") from None
    function.restype, function.argtypes = result, arguments
    return function
