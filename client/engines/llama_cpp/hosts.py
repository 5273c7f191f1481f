"""What the cache needs of a host: the context, the library that made it, and the files of its model."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

Library = ctypes.CDLL | str | os.PathLike[str]
"""A libllama: a ctypes handle, or its path, which stands for the loaded one."""

_SHARD: Final = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")


class HostContext(msgspec.Struct, frozen=True):
    """A context of llama.cpp, and what it does not know of itself.

    Attributes:
        pointer: The address of the llama_context.
        library: The library that made it.
        model_files: The GGUF files of the model, all shards.
    """

    pointer: int
    library: Library
    model_files: tuple[Path, ...]


def context_of(llama: Any, library: Library | None, model_files: Sequence[str | os.PathLike[str]]) -> HostContext:
    """Returns the context of a host, with its library and its model.

    Args:
        llama: A Llama of llama-cpp-python, or the address of a llama_context.
        library: The library; None for that of llama-cpp-python.
        model_files: The files of the model; none for the `model_path` of a Llama.

    Raises:
        TypeError: The address of a context was given without its library or its files.
    """
    raw = isinstance(llama, (int, ctypes.c_void_p))
    if raw and (library is None or not model_files):
        raise TypeError("the address of a llama_context needs library and model_files, which it does not know")
    files = [Path(file) for file in model_files] or shards_of(Path(llama.model_path))
    return HostContext(_address(llama if raw else llama._ctx.ctx), library or package_library(), tuple(files))


def package_library() -> ctypes.CDLL:
    """Returns the libllama of llama-cpp-python. Raises TypeError if the process has not imported it."""
    module = sys.modules.get("llama_cpp.llama_cpp")
    if module is None:
        raise TypeError("llama-cpp-python is not imported: pass the libllama of the context as library")
    handle: ctypes.CDLL = module._lib
    return handle


def shards_of(path: Path) -> list[Path]:
    """Returns the files of a model, of which this is one: `name-00001-of-00003.gguf` has two others."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    name, count = match.groups()
    return [path.with_name(f"{name}-{number:05}-of-{count}.gguf") for number in range(1, int(count) + 1)]


def _address(pointer: Any) -> int:
    return int(ctypes.cast(pointer, ctypes.c_void_p).value or 0)
