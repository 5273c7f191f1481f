"""The storage backend of SGLang's HiCache: pages behind the host pool that SGLang itself keeps.

SGLang calls it on several threads: one stores, one looks up, one loads. Its host pages stay allocated until a call has
returned, so that each call has a time limit. No method raises an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult

from pagetier.client.engines.sglang.engine_log import log, log_unsupported
from pagetier.client.engines.sglang.storage_pages import StoragePages

_R = TypeVar("_R")
_P = ParamSpec("_P")


class PagetierStorage(HiCacheStorage):
    """Stores the pages of SGLang's host pool in pagetier. SGLang makes it.

    Args:
        storage_config: SGLang's HiCacheStorageConfig.
        kwargs: Nothing that is used.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        self._config = storage_config
        self._pages: StoragePages | None = None

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Opens the cache of the host pool. If it is not supported, one line in the log says why."""
        super().register_mem_pool_host(mem_pool_host)
        try:
            from pagetier.client.engines.sglang.setup import open_storage  # may fail with another version of SGLang

            self._pages = open_storage(self._config, mem_pool_host)
        except Exception as error:  # noqa: BLE001  SGLang serves without a store
            log_unsupported(error)

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Returns how many pages, from the first on, are in memory or on disk."""
        pages = self._pages
        return self._safely(0, pages.count, keys, extra_info) if pages else 0

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Loads pages into the host pool, and returns which were loaded."""
        pages = self._pages
        loaded = self._safely(0, pages.load, keys, host_indices, extra_info) if pages else 0
        return [True] * loaded + [False] * (len(keys) - loaded)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores pages of the host pool, and returns which are stored, or are being stored by another process."""
        pages = self._pages
        none = [False] * len(keys)
        return self._safely(none, pages.store, keys, host_indices, extra_info) if pages else none

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """Returns that nothing is there: models with several pools are cached by the linker only."""
        return PoolTransferResult.empty()

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Loads nothing, see batch_exists_v2()."""
        return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Stores nothing, see batch_exists_v2()."""
        return self.batch_get_v2(transfers, extra_info)

    def exists(self, key: str) -> bool:
        """Returns whether a page is in memory or on disk."""
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> None:
        """Returns a miss: SGLang calls it without `"interface_v1": 1` only, which open_storage() demands."""

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[None]:
        """Returns misses, see get()."""
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores nothing, see get()."""
        return False

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Stores nothing, see get()."""
        return False

    def clear(self) -> None:
        """Drops the pages of this namespace from memory and disk, for all engines that share it."""
        if self._pages is not None:
            self._safely(None, self._pages.clear)

    def close(self) -> None:
        """Leaves the daemon."""
        pages, self._pages = self._pages, None
        if pages is not None:
            self._safely(None, pages.close)

    def _safely(self, failed: _R, call: Callable[_P, _R], *arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return call(*arguments, **named)
        except Exception:  # noqa: BLE001  SGLang computes what it does not get
            log.exception("pagetier: %s failed, its pages are misses", getattr(call, "__name__", call))
            return failed
