"""Determines which weights an engine has: engines with copies of the same weights share pages.

The identity of weights is, in this order:

1. the setting `weights`;
2. the commit of the hub, for a model of the hub or a folder of its cache whose files were not changed;
3. a digest of the files of a folder: configuration, tokenizer, code and all of the weights. A file in the hub's cache
   is not read, because its name is the digest of its content.

Without any of them the engine shares no pages. A draft model has an identity of its own beside that of the model.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from pagetier.client.engines.file_digests import FileDigests, blob_name, is_blob, user_cache

_SUMMARY: Final = 12
_START_FIELD: Final = 19  # starttime of proc_pid_stat(5), counted after the name of the program
_COMMIT: Final = re.compile("[0-9a-f]{40,64}")
_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_OTHERS: Final = (".json", ".py", ".model", ".txt", ".tiktoken", ".jinja")
# The formats that are loaded from the files of a folder. A loader of another kind may take weights from elsewhere.
_LOADED_FROM_FILES: Final = frozenset(
    (
        *("auto", "hf", "safetensors", "pt", "npcache", "mistral", "gguf", "bitsandbytes", "dummy"),
        *("fastsafetensors", "instanttensor", "sharded_state", "runai_streamer", "runai_streamer_sharded"),
    )
)


class UnidentifiedError(Exception):
    """The weights cannot be distinguished from others. The message says why; it is logged."""


class WeightsSource(msgspec.Struct, frozen=True):
    """Where the weights of an engine are from.

    Attributes:
        title: The name of the model for people.
        declared: The setting `weights`; "" if it is not set.
        commit: The commit of the hub; "" if it is unknown.
        path: The folder or the file of the weights; None if they have none here.
        since: The time at which the engine was started, in nanoseconds: files that changed later may differ from those
            that it has loaded.
        obstacle: Why no file identifies these weights; "" if files may do so.
    """

    title: str
    declared: str = ""
    commit: str = ""
    path: Path | None = None
    since: int = 0
    obstacle: str = ""


class ModelIdentity(msgspec.Struct, frozen=True):
    """Which weights an engine has.

    Attributes:
        weights: The identity of the weights; "" if they cannot be identified, and then the salt is a random text.
        title: The name of the model for people.
    """

    weights: str = ""
    title: str = ""

    @property
    def summary(self) -> str:
        """What the log says: engines with the same digest here have the same weights."""
        return f"weights {self.weights[:_SUMMARY]}" if self.weights else "weights of this engine only"


def source_of(config: Any, declared: str, since: int) -> WeightsSource:
    """Returns where the weights of one model are from.

    Args:
        config: vLLM's VllmConfig, its draft model, or the same settings of another engine.
        declared: The setting `weights`.
        since: The time at which the engine was started, in nanoseconds.
    """
    model = config.model_config
    given = Path(str(model.model))
    path = given if given.exists() else _snapshot(config)
    commit = _commit_of_path(given) if given.exists() else _commit_of_hub(model)
    return WeightsSource(_title(model, path), declared, commit, path, since, _obstacle(config))


def started_ns() -> int:
    """Returns the time at which this process was started, in nanoseconds."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_START_FIELD])
    booted = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return booted + ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def identify(sources: Sequence[WeightsSource], digests: FileDigests) -> str:
    """Returns the identity of the weights from all sources, in hex. This may read all of them.

    Raises:
        UnidentifiedError: There is no such identity.
        ChangedError: A file was changed while it was read.
        OSError: A file cannot be read.
    """
    identity = [part for source in sources for part in _identity(source, digests)]
    return sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def bytes_to_read(sources: Sequence[WeightsSource], digests: FileDigests) -> int:
    """Returns how many bytes identify() has to read. Raises OSError if a file cannot be read."""
    return sum(_bytes_of(source, digests) for source in sources)


def _bytes_of(source: WeightsSource, digests: FileDigests) -> int:
    if source.declared or source.obstacle or source.path is None:
        return 0
    files = _weights(source.path) if source.commit else files_of(source.path)
    return digests.unread_bytes(list(files))


def _identity(source: WeightsSource, digests: FileDigests) -> list[object]:
    if source.declared:
        return ["declared", source.declared]
    if source.obstacle:
        raise UnidentifiedError(source.obstacle)
    if source.commit and (source.path is None or _are_unchanged_blobs(source.path, digests)):
        return ["commit", source.title, source.commit]
    if source.path is None:
        raise UnidentifiedError("it has neither local files nor a commit of the hub")
    return ["files", _digests(source.path, source.since, digests)]


def _digests(path: Path, since: int, digests: FileDigests) -> dict[str, str]:
    files = list(files_of(path))
    if not any(file.suffix in _WEIGHTS for file in files):
        raise UnidentifiedError(f"there are no files of weights in {path}")
    found = digests.digests_of(files)
    for file in files:
        if not is_blob(file) and file.stat().st_ctime_ns > since:
            raise UnidentifiedError(f"{file} was changed after this engine was started")
    folder = path if path.is_dir() else path.parent
    return {str(file.relative_to(folder)): digest for file, digest in zip(files, found, strict=True)}


def _are_unchanged_blobs(path: Path, digests: FileDigests) -> bool:
    weights = list(_weights(path))
    names = [blob_name(file) for file in weights]
    return None not in names and digests.digests_of(weights) == names


def _weights(path: Path) -> Iterator[Path]:
    return (file for file in files_of(path) if file.suffix in _WEIGHTS)


def files_of(path: Path) -> Iterator[Path]:
    """Yields the files that determine what a model or an adapter computes, in a fixed order.

    A file of weights may have the weights of a vision model beside it.
    """
    if not path.is_dir():
        yield from sorted({path, *path.parent.glob("*mmproj*.gguf")})
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if Path(name).suffix in (*_WEIGHTS, *_OTHERS))


def _obstacle(config: Any) -> str:
    model, load = config.model_config, config.load_config
    if getattr(model, "model_weights", ""):
        return "its weights are loaded from an object store"
    if (load_format := str(load.load_format)) not in _LOADED_FROM_FILES:
        return f'its weights are loaded with load_format "{load_format}"'
    return ""


def _commit_of_hub(model: Any) -> str:
    """Returns the commit of a model of the hub.

    From 0.28 on a revision is a text such as "main" with the commit as an attribute. The configuration's commit is that
    of the weights unless it is from another repository.
    """
    resolved = getattr(model.revision, "resolved", None)
    exact = _COMMIT.fullmatch(str(model.revision or ""))
    same = getattr(model, "hf_config_path", None) in (None, model.model)
    of_config = getattr(model.hf_config, "_commit_hash", None) if same else None
    return str(resolved or (exact and exact[0]) or of_config or "")


def _commit_of_path(path: Path) -> str:
    """Returns the commit of a folder of the hub's cache, models--NAME/snapshots/COMMIT."""
    return path.name if path.parent.name == "snapshots" and _COMMIT.fullmatch(path.name) else ""


def _snapshot(config: Any) -> Path | None:
    """Returns the folder of a model of the hub in the hub's cache, None if it is elsewhere."""
    model, home = config.model_config, os.environ.get("HF_HOME") or user_cache() / "huggingface"
    cache = getattr(config.load_config, "download_dir", None) or os.environ.get("HF_HUB_CACHE") or Path(home, "hub")
    snapshots = Path(cache, "models--" + str(model.model).replace("/", "--"), "snapshots")
    commit = _commit_of_hub(model)
    return snapshots / commit if commit and (snapshots / commit).is_dir() else None


def _title(model: Any, path: Path | None) -> str:
    """Returns the name of the hub if there is one: a folder of its cache has a commit as its name."""
    if path is not None and _commit_of_path(path):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return str(model.model)
