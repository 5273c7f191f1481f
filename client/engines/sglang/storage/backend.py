"""The storage backend of SGLang's HiCache: pages behind the host pool that SGLang itself keeps.

SGLang calls it on several threads: one stores, one looks up, one loads. Its host pages stay allocated until a call has
returned, so that each call has a time limit. No method raises an exception.

1. The pools are registered one by one, then `on_host_pools_registered` opens the cache: a group needs all of them.
2. `batch_exists_v2` returns what can be restored, and begins to read what memory lacks. It pins nothing, because SGLang
   does not say when a pin could end.
3. `batch_get_v2` finds the pages again and loads them. What was evicted since is a miss, and SGLang computes it.
4. `batch_set_v2` stores pages that SGLang has copied to its host pool. It returns after the copies, since SGLang may
   use the host pages for others then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolName, PoolTransferResult
from sglang.srt.observability.metrics_collector import StorageMetrics

from pagetier.client.engines.sglang.engine.batch_hook import measure_batches
from pagetier.client.engines.sglang.engine.batch_times import ReportsBatches
from pagetier.client.engines.sglang.pools.host_pools import RIDES
from pagetier.client.engines.sglang.storage.pages import Restorable, StoragePages
from pagetier.client.engines.unsupported import log_unsupported

log = logging.getLogger("pagetier.sglang")

_CLEAR_S: Final = 10.0  # pages on disk are removed by the disk worker, between what it writes

_R = TypeVar("_R")
_P = ParamSpec("_P")


class PagetierStorage(HiCacheStorage, ReportsBatches):
    """Stores the pages of SGLang's host pool in pagetier. SGLang makes it.

    Args:
        storage_config: SGLang's HiCacheStorageConfig.
        kwargs: Nothing that is used.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        self._config = storage_config
        self._hosts: dict[str, Any] = {}
        self._pages: StoragePages | None = None

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Takes the host pool of full attention."""
        super().register_mem_pool_host(mem_pool_host)
        self._hosts[PoolName.KV.value] = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Takes the host pool of one layer group."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._hosts[str(host_pool_name)] = host_pool
        if self._pages is not None:  # SGLang adds a pool at run time, which may be one that is not known
            self.close()
            self.on_host_pools_registered()

    def on_host_pools_registered(self) -> None:
        """Opens the cache of all host pools. If one is not supported, one line in the log says why."""
        try:
            from pagetier.client.engines.sglang.storage.setup import (
                open_storage,  # may fail with another version of SGLang
            )

            self._pages = open_storage(self._config, self._hosts)
            measure_batches()
        except Exception as error:  # noqa: BLE001  SGLang serves without a cache
            log_unsupported(log, error)

    def batch_ended(self, batch: Any) -> None:
        """Implements ReportsBatches."""
        if self._pages is not None:
            self._safely(None, self._pages.batches.ended, batch)

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Returns how many pages, from the first on, any tier has."""
        pages = self._pages
        return self._safely(0, pages.count, keys, extra_info) if pages else 0

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Loads pages into the host pool, and returns which were loaded."""
        pages = self._pages
        loaded = self._safely(0, pages.load, PoolName.KV.value, keys, host_indices, extra_info) if pages else 0
        return [True] * loaded + [False] * (len(keys) - loaded)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores pages of the host pool, and returns which were not rejected."""
        pages = self._pages
        none = [False] * len(keys)
        return self._safely(none, pages.store, PoolName.KV.value, keys, host_indices, extra_info) if pages else none

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """Returns the set of prefixes for which all pools have what they need, in any tier."""
        pages = self._pages
        if pages is None:
            return PoolTransferResult.empty()
        found = self._safely(Restorable(), pages.restorable, keys, pool_transfers or (), extra_info)
        names = (PoolName.KV, *(one.name for one in pool_transfers or ()))
        counts = {name: found.by_pool.get(RIDES.get(name.value, name.value), 0) for name in names}
        by_pool = {name: count for name, count in counts.items() if count}
        return PoolTransferResult(max(found.lengths, default=0), by_pool, list(found.lengths))

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Loads pages into the host pools, and returns which were loaded."""
        return self._by_pool(self._load_pool, transfers, extra_info)

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        """Stores pages of the host pools, and returns which were not rejected."""
        return self._by_pool(self._store_pool, transfers, extra_info)

    def exists(self, key: str) -> bool:
        """Returns whether any tier has a page."""
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

    def get_stats(self) -> StorageMetrics:
        """Returns what was copied since the last call, for SGLang's metrics."""
        metrics, pages = StorageMetrics(), self._pages
        while pages is not None and pages.loaded:
            batch = pages.loaded.popleft()
            metrics.prefetch_pgs.append(batch.pages)
            metrics.prefetch_bandwidth.append(batch.rate)
        while pages is not None and pages.stored:
            batch = pages.stored.popleft()
            metrics.backup_pgs.append(batch.pages)
            metrics.backup_bandwidth.append(batch.rate)
        return metrics

    def clear(self) -> None:
        """Drops the pages of this model from memory and disk, for all engines that share them.

        The log says if some may be left: SGLang reports a success in any case.
        """
        left = self._safely([], self._pages.clear, _CLEAR_S) if self._pages is not None else []
        if left:
            log.warning(
                "pages of %s may not be cleared, because they are in use or the daemon did not answer: clear again",
                ", ".join(left),
            )

    def close(self) -> None:
        """Leaves the daemon. SGLang calls it when the backend is detached at run time."""
        pages, self._pages = self._pages, None
        if pages is not None:
            self._safely(None, pages.close)

    def _by_pool(
        self, copy: Callable[[Any, Any], list[bool]], transfers: Sequence[Any], extra: Any
    ) -> dict[Any, list[bool]]:
        """Copies the pages of each pool once. A pool that rides on another one is copied with it."""
        own = [one for one in transfers if one.name.value not in RIDES]
        copied = {one.name: copy(one, extra) for one in own}
        keys = {one.name.value: (one.keys, copied[one.name]) for one in own}
        return {one.name: copied[one.name] if one.name in copied else _copied_with(one, keys) for one in transfers}

    def _load_pool(self, transfer: Any, extra: Any) -> list[bool]:
        pages, keys = self._pages, transfer.keys or []
        wanted = (transfer.name.value, keys, transfer.host_indices, extra)
        loaded = self._safely(0, pages.load, *wanted) if pages else 0
        return [True] * loaded + [False] * (len(keys) - loaded)

    def _store_pool(self, transfer: Any, extra: Any) -> list[bool]:
        pages, keys = self._pages, transfer.keys or []
        none = [False] * len(keys)
        stored = (transfer.name.value, keys, transfer.host_indices, extra)
        return self._safely(none, pages.store, *stored) if pages and keys else none

    def _safely(self, failed: _R, call: Callable[_P, _R], *arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return call(*arguments, **named)
        except Exception:
            log.exception("pagetier: %s failed, its pages are misses", getattr(call, "__name__", call))
            return failed


def _copied_with(riding: Any, copied: Mapping[str, tuple[Any, list[bool]]]) -> list[bool]:
    """Returns which pages of a pool that rides on another one were copied with that one, by its keys and pages.

    SGLang copies pages of full attention with a call of their own, and counts a page only if that has copied it.
    """
    on, none = RIDES.get(riding.name.value), [False] * len(riding.keys or ())
    if on == PoolName.KV.value:
        return [True] * len(none)
    keys, pages = copied.get(str(on), (None, none))
    return pages if keys == riding.keys else none
