"""Identifies LoRA adapters: engines whose adapters have the same files share their pages.

vLLM's hashes contain only the name of an adapter, which may mean other weights in another engine.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import msgspec

from pagetier.client.engines.file_digests import ChangedError, FileDigests
from pagetier.client.engines.vllm.namespace import with_adapter
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.weights import UnidentifiedError, WeightsSource, files_of, identify

log = logging.getLogger("vllm.pagetier")

_SETTINGS: Final = (
    *("target_modules", "enable_tower_connector_lora"),
    *("enable_mixed_moe_lora_format", "enable_moe_shared_loras"),
)

Statuses = tuple[tuple[int, ...], ...]


class _Identified(msgspec.Struct, frozen=True):
    """The identity of an adapter, and what its files were when it was determined."""

    identity: str
    statuses: Statuses


class LoraAdapters:
    """The adapters of an engine. Called by the scheduler's thread; files are read by a thread of its own.

    An adapter is identified by the files in its folder, as a model is. Folder, files and links must be older than the
    engine, because it may have loaded others before they were changed, and the files are compared again for each
    request. Pages of an adapter that is not identified, or not yet, are not shared with other engines.

    Args:
        digests: Determines the digests of files.
        since: The time at which the engine was started, in nanoseconds.
        config: vLLM's LoRAConfig.
    """

    def __init__(self, digests: FileDigests, since: int, config: Any) -> None:
        self._digests, self._since, self._settings = digests, since, _settings_of(config)
        self._engine = token_hex(16)
        self._known: dict[Path, Future[_Identified]] = {}
        self._thread = ThreadPoolExecutor(1, "pagetier-adapters")

    def name_of(self, adapter: Any) -> list[object]:
        """Returns what names an adapter in a namespace. Does not wait. `adapter` is vLLM's LoRARequest."""
        identity = "" if getattr(adapter, "load_inplace", False) else self._identity(Path(str(adapter.lora_path)))
        if identity:
            return ["weights", identity, *self._settings]
        return private_name(self._engine, adapter)

    def close(self) -> None:
        """Reads no further adapters. Does not wait."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _identity(self, folder: Path) -> str:
        """Returns the identity of the files in a folder; "" if they have none, or none yet."""
        known = self._known.get(folder)
        if known is None:
            self._known[folder] = self._thread.submit(self._identify, folder)
            return ""
        if not known.done() or known.cancelled():
            return ""
        identified = known.result()
        return identified.identity if identified.statuses == _statuses_of(folder) else ""

    def _identify(self, folder: Path) -> _Identified:
        try:
            statuses = _statuses_of(folder)
            _require_unchanged(folder, self._since)
            source = WeightsSource(folder.name, path=folder, since=self._since)
            return _Identified(identify([source], self._digests), statuses)
        except (UnidentifiedError, ChangedError, OSError) as error:
            log.warning("pagetier shares no pages of the adapter in %s with other engines: %s", folder, error)
            return _Identified("", ())


def _settings_of(config: Any) -> list[object]:
    """Returns the dtype of adapters, and the given settings that change what is computed with their files."""
    values = {name: getattr(config, name, None) for name in _SETTINGS}
    given = {name: value for name, value in values.items() if value not in (None, False)}
    given |= {name: sorted(value) for name, value in given.items() if isinstance(value, list)}
    return [str(config.lora_dtype), *([given] if given else [])]


def private_name(engine: str, adapter: Any) -> list[object]:
    """Returns a name that no other engine gives to an adapter. `engine` is a text that is unique to this engine."""
    return [engine, adapter.lora_int_id, adapter.lora_name, str(getattr(adapter, "lora_path", ""))]


def groups_with(groups: Sequence[PagedGroup], name: list[object]) -> tuple[PagedGroup, ...]:
    """Returns the groups with the namespaces of an adapter of this name."""
    return tuple(msgspec.structs.replace(group, namespace=with_adapter(group.namespace, name)) for group in groups)


def _require_unchanged(folder: Path, since: int) -> None:
    """Raises UnidentifiedError if the folder or a file was changed, renamed or linked elsewhere after `since`."""
    # A link into the hub's cache may lead to other files by now than those that the engine has loaded.
    for path in (folder, folder.resolve(), *files_of(folder)):
        if path.lstat().st_ctime_ns > since:
            raise UnidentifiedError(f"{path} was changed after this engine was started")


def _statuses_of(folder: Path) -> Statuses:
    """Returns what changes when a file changes; empty if the folder cannot be read."""
    try:
        statuses = [file.stat() for file in files_of(folder)] if folder.is_dir() else []
    except OSError:
        return ()
    return tuple((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in statuses)
