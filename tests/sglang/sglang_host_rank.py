"""One rank of SGLang's cache with HiCache: its tree, its pools, its host pool, and pagetier's storage behind it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, InitLoadBackParams, MatchPrefixParams
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

import sglang_host_copies
from sglang_model import RankArguments, Restored
from sglang_rank import Rank, key_of, request_of

_WAIT_S: Final = 60.0
_TIMEOUT_S: Final = 20.0  # for a busy machine; timeouts have tests of their own


class HostRank(Rank):
    """One rank."""

    hierarchical = True

    def __init__(self, arguments: RankArguments) -> None:
        sglang_host_copies.install()
        super().__init__(arguments)
        self.controller: Any = self.cache.cache_controller
        self.free_at_start = self.controller.mem_pool_host.available_size()

    def restore(self, number: int, pages: int, request: str = "") -> Restored:
        """Matches a prompt, reads what the host lacks from the store, loads it back, and compares."""
        tokens = pages * self.spec.page
        handle = CacheRequestHandle(request or f"request-{time.monotonic_ns()}", 0)
        req = request_of(handle.rid, number)
        found = self.cache.match_prefix(MatchPrefixParams(key=key_of(number, tokens)))
        tail = key_of(number, tokens).token_ids[found.device_prefix_len + found.host_hit_length :]
        self.cache.prefetch_from_storage(handle, found.last_host_node, tail, None, [], matched_prefix_tokens=[])
        assert self._until(lambda: self.cache.check_prefetch_progress(handle)), "a prefetch did not end"
        hit = int(self.cache.pop_prefetch_loaded_tokens(handle))
        found = self.cache.match_prefix(MatchPrefixParams(key=key_of(number, tokens)))
        req.last_node, req.prefix_len = found.last_device_node, found.device_prefix_len
        req.swa_host_hit_length, req.mamba_host_hit_length = found.swa_host_hit_length, found.mamba_host_hit_length
        loaded = 0
        if found.host_hit_length:
            params = InitLoadBackParams(
                best_match_node=found.best_match_node, host_hit_length=found.host_hit_length, req=req
            )
            loaded = self.cache.init_load_back(params)[0]
            self.cache.ready_to_load_host_cache()
            self._until(lambda: not self.cache.ongoing_load_back)
        found = self.cache.match_prefix(MatchPrefixParams(key=key_of(number, tokens)))
        return Restored(hit, loaded, self._has(number, found.last_device_node), failed=False)

    def copied(self) -> tuple[int, int]:
        """Returns the pages that SGLang's metrics say were loaded, and those that were stored, since the last call."""
        stats = self.controller.storage_backend.get_stats()
        rates = (*stats.prefetch_bandwidth, *stats.backup_bandwidth)
        assert all(rate > 0 for rate in rates) and len(rates) == len(stats.prefetch_pgs) + len(stats.backup_pgs)
        return sum(stats.prefetch_pgs), sum(stats.backup_pgs)

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

    def leaked(self) -> int:
        """Empties the tree, and returns the host's tokens that are still allocated when nothing is in progress."""
        self.cache.reset()
        host = self.controller.mem_pool_host
        self._until(lambda: host.available_size() == self.free_at_start)
        return int(self.free_at_start - host.available_size())

    def close(self) -> None:
        """Closes the store."""
        self.controller.storage_backend.close()

    def _has(self, number: int, node: Any) -> bool:
        """Returns whether the tree has the state of a prompt up to a node. False for the root."""
        slots = self.cache.path_device_indices(node)
        if not len(slots) or not self.pools.has(number, slots, len(slots)):
            return False
        if self.spec.kind != "mamba":
            return True
        snapshot = self.cache.tree_core.get_component_device_value(node, ComponentType.MAMBA)
        return snapshot is not None and self.pools.has_snapshot(number, snapshot[0], len(slots))

    def _count_stored(self, insert: Callable[[], object]) -> int:
        insert()
        assert not self.pending(), "a backup did not end"
        return 1

    def _until(self, over: Callable[[], bool]) -> bool:
        ends = time.monotonic() + _WAIT_S
        while not over():
            self.cache.check_hicache_events()
            if time.monotonic() > ends:
                return False
            time.sleep(0.002)
        return True

    def _door_flags(self, extra: dict[str, Any]) -> dict[str, Any]:
        config = {
            "backend_name": "pagetier",
            "module_path": "pagetier.client.engines.sglang",
            "class_name": "PagetierStorage",
            "interface_v1": 1,
            "prefetch_threshold": 1,
            "timeout": _TIMEOUT_S,
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
