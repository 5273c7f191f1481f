"""One rank of SGLang's cache with HiCache: its tree, its pools, its host pool, and pagetier's storage behind it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

import torch
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, InitLoadBackParams, MatchPrefixParams
from sglang.srt.mem_cache.hicache_storage import PoolTransferResult
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.utils import get_storage_hash_str

import sglang_host_copies
from eventually import PATIENCE_S, eventually
from sglang_host_rows import HostRows
from sglang_model import AnyPrompt, RankArguments, Restored, place_of
from sglang_pools import SLOTS
from sglang_rank import Rank
from sglang_requests import key_of, request_of

_NUMBERS: Final = itertools.count()  # of requests


class HostRank(Rank):
    """One rank."""

    hierarchical = True

    def __init__(self, arguments: RankArguments) -> None:
        sglang_host_copies.install()
        super().__init__(arguments)
        self.controller: Any = self.cache.cache_controller
        pools = {name: entry.host_pool for name, entry in self.controller.mem_pool_host.entry_map.items()}
        self.host = HostRows(pools, self.controller.storage_backend)

    def served(self) -> tuple[Any, dict[str, Any]]:
        """Returns pagetier's client, and its groups by the name of their pool."""
        pages = self.controller.storage_backend._pages
        return pages._client, pages._opened()

    def find_at_most(self, rank: int, pages: int) -> None:
        """Makes the lookups of one rank end after some pages."""
        backend = self.controller.storage_backend
        exists = backend.batch_exists_v2

        def exists_at_most(*asked: Any) -> PoolTransferResult:
            found = exists(*asked)
            lengths = [length for length in found.restorable_prefix_pages if length <= pages]
            return PoolTransferResult(max(lengths, default=0), found.extra_pool_hit_pages, lengths)

        if self.rank == rank:
            backend.batch_exists_v2 = exists_at_most

    def drop_of_stage(self, stage: int, pool: str) -> bool:
        """Drops the stored pages that one stage has of a pool, and returns whether this process did so."""
        return self.drop_of(stage * self.spec.ranks * self.spec.contexts, pool)

    def find_in_stage(self, stage: int, number: int) -> None:
        """Uses the pages that one stage has of a prompt, and not those of the others."""
        if place_of(self.spec, self.rank).stage == stage:
            hashes = get_storage_hash_str(key_of(number, self.spec.page), None, page_size=self.spec.page)
            assert self.controller.storage_backend.batch_exists(hashes) in (0, 1)

    def reset_with_host(self) -> None:
        """Empties the tree and the pools, those of the host too, as a restart of the engine does."""
        self.reset()
        self.host.overwrite()

    def restore(self, number: AnyPrompt, pages: int, request: str = "") -> Restored:
        """Matches a prompt, reads what the host lacks from the store, loads it back, and compares."""
        handle = CacheRequestHandle(request or f"request-{next(_NUMBERS)}", 0)
        self.pools.remember()
        self.host.remember()
        self._prefetch(handle, number, pages)
        assert self._until(lambda: self.cache.check_prefetch_progress(handle)), "a prefetch did not end"
        hit = int(self.cache.pop_prefetch_loaded_tokens(handle))
        req = request_of(handle.rid, number)
        loaded = self._load_back(req, self._match(number, pages))
        untouched = self.host.only_asked()
        own = req.kv.mamba_pool_idx if req.kv.holds_mamba else None
        equal = self._has(number, self._match(number, pages).last_device_node, own)
        equal = equal and untouched and self.pools.only_loaded()
        if req.kv.holds_mamba:
            self.pools.requests.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(0))
        return Restored(hit, loaded, equal, failed=False)

    def found_of_each_pool(self, number: AnyPrompt, pages: int) -> dict[str, int]:
        """Restores a prompt, and returns how many pages the store has reported of each pool."""
        backend, found = self.controller.storage_backend, {}
        exists = backend.batch_exists_v2

        def recorded(*asked: Any) -> PoolTransferResult:
            result = exists(*asked)
            found.update({name.value: count for name, count in result.extra_pool_hit_pages.items()})
            return result

        with patch.object(backend, "batch_exists_v2", recorded):
            self.restore(number, pages)
        return found

    def prefetch(self, request: str, number: AnyPrompt, pages: int) -> int:
        """Begins a prefetch, waits until it has memory of the host, and returns how many tokens are allocated."""
        before = self.free_slots()["host kv"]
        self._prefetch(CacheRequestHandle(request, 0), number, pages)
        self._until(lambda: self.free_slots()["host kv"] < before)
        return before - self.free_slots()["host kv"]

    def copied(self) -> tuple[int, int]:
        """Returns the pages that SGLang's metrics say were loaded, and those that were stored, since the last call."""
        stats = self.controller.storage_backend.get_stats()
        rates = (*stats.prefetch_bandwidth, *stats.backup_bandwidth)
        assert all(rate > 0 for rate in rates) and len(rates) == len(stats.prefetch_pgs) + len(stats.backup_pgs)
        return sum(stats.prefetch_pgs), sum(stats.backup_pgs)

    def poll(self) -> int:
        """Executes one step without a batch, and returns the number of writes to the host and to the store."""
        self.cache.check_hicache_events()
        return len(self.cache.ongoing_write_through) + len(self.cache.ongoing_backup)

    def pending(self) -> int:
        """Waits until nothing is being written to the host or to the store."""
        busy = (self.cache.ongoing_write_through, self.cache.ongoing_backup)
        self._until(lambda: not any(busy))
        return sum(map(len, busy))

    def clear(self) -> bool:
        """Does what SGLang's request to clear the store does, and returns whether SGLang takes it for done."""
        return bool(self.cache.clear_storage_backend())

    def threads(self) -> int:
        """Returns how many of SGLang's threads for the store are alive."""
        controller = self.controller
        names = ("prefetch_thread", "backup_thread", "prefetch_io_aux_thread")
        return sum(getattr(controller, name).is_alive() for name in names if hasattr(controller, name))

    def free_slots(self) -> dict[str, int]:
        """Returns the free slots of each pool of the GPU and of the host."""
        host = self.cache.cache_controller.mem_pool_host.entry_map
        own = {name: one.host_pool for name, one in host.items() if not name.startswith("deepseek_v4")}
        return self.pools.free_slots() | {f"host {name}": pool.available_size() for name, pool in own.items()}

    def leaked(self) -> dict[str, int]:
        """Evicts all that nothing uses, and returns the slots of each pool that stay allocated."""
        self._until(lambda: not self._evict_all())
        return self._evict_all()

    def close(self) -> None:
        """Closes the store."""
        self.controller.storage_backend.close()

    def _match(self, number: AnyPrompt, pages: int) -> Any:
        return self.cache.match_prefix(MatchPrefixParams(key=self._key(number, pages * self.spec.page)))

    def _prefetch(self, handle: CacheRequestHandle, number: AnyPrompt, pages: int) -> None:
        """Begins to read what the host lacks, as SGLang's scheduler does."""
        found, key = self._match(number, pages), self._key(number, pages * self.spec.page)
        there, node = found.device_prefix_len + found.host_hit_length, found.last_host_node
        self.cache.prefetch_from_storage(
            handle,
            node,
            key.token_ids[there:],
            self.cache.get_last_hash_value(node),
            matched_prefix_tokens=key.token_ids[:there],
            extra_key=key.extra_key,
            cache_salt=key.cache_salt,
        )

    def _load_back(self, req: Any, found: Any) -> int:
        """Loads what the host has to the GPU, and returns its tokens."""
        req.last_node, req.prefix_len = found.last_device_node, found.device_prefix_len
        req.swa_host_hit_length, req.mamba_host_hit_length = found.swa_host_hit_length, found.mamba_host_hit_length
        if not found.host_hit_length:
            return 0
        params = InitLoadBackParams(
            best_match_node=found.best_match_node, host_hit_length=found.host_hit_length, req=req
        )
        loaded = int(self.cache.init_load_back(params)[0])
        self.cache.ready_to_load_host_cache()
        self._until(lambda: not self.cache.ongoing_load_back)
        return loaded

    def _evict_all(self) -> dict[str, int]:
        """Evicts the GPU and the host, and returns the slots of each pool that stay allocated."""
        used = super().leaked()
        for component in self.cache.tree_components if used else ():
            self.cache.evict_host(2 * SLOTS, component)
        return super().leaked()

    def _has(self, number: AnyPrompt, node: Any, own: torch.Tensor | None) -> bool:
        """Returns whether the tree has the state of a prompt up to a node, and so has the request's own slot, if any.

        False for the root.
        """
        slots = self.cache.path_device_indices(node)
        if not len(slots) or not self.pools.has(number, slots, len(slots)):
            return False
        if self.spec.kind != "mamba":
            return True
        snapshot = self.cache.tree_core.get_component_device_value(node, ComponentType.MAMBA)
        snapshots = [one for one in (snapshot, own) if one is not None]
        return snapshot is not None and all(
            self.pools.has_snapshot(number, one.reshape(-1)[0], len(slots)) for one in snapshots
        )

    def _count_stored(self, insert: Callable[[], object]) -> int:
        insert()
        assert not self.pending(), "a backup did not end"
        return 1

    def _until(self, over: Callable[[], bool]) -> bool:
        def is_over() -> bool:
            if not (result := over()):
                self.cache.check_hicache_events()
            return result

        return eventually(is_over)

    def _door_flags(self, extra: dict[str, Any]) -> dict[str, Any]:
        config = {
            "backend_name": "pagetier",
            "module_path": "pagetier.client.engines.sglang",
            "class_name": "PagetierStorage",
            "interface_v1": 1,
            "prefetch_threshold": 1,
            "timeout": PATIENCE_S,  # timeouts have tests of their own
            **{name: value for name, value in extra.items() if name != "flush"},
        }
        return {
            "enable_hierarchical_cache": True,
            "hicache_storage_backend": "dynamic",
            "hicache_storage_backend_extra_config": json.dumps(config),
            "hicache_io_backend": "kernel" if self.spec.layout in ("page_first", "page_head") else "direct",
            "hicache_mem_layout": self.spec.layout,
            "hicache_write_policy": "write_through",
            "hicache_ratio": 2.0,
            "hicache_size": 0,
            "hicache_storage_prefetch_policy": "wait_complete",
        }
