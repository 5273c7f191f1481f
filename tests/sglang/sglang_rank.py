"""One rank of SGLang's cache in a process of its own: its radix tree, its pools, and pagetier's linker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import torch
import torch.distributed as dist
from sglang.srt.managers.scheduler_components.kv_events_publisher import SchedulerKvEventsPublisher
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    EvictParams,
    InitLoadBackParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_tree_cache
from sglang.srt.runtime_context import get_context, get_parallel

from eventually import eventually
from pagetier.shm import clock
from sglang_changes import change, forget, load_one_more
from sglang_faults import Faults
from sglang_groups import Groups
from sglang_model import AnyPrompt, RankArguments, Restored
from sglang_physical_pools import PhysicalPools
from sglang_pools import SLOTS, Pools
from sglang_requests import key_of, request_of
from sglang_sessions import Sessions

_NUMBERS: Final = itertools.count()  # of requests


class Rank(Faults, Sessions):
    """One rank."""

    hierarchical = False

    def __init__(self, arguments: RankArguments) -> None:
        self.spec = spec = arguments.spec
        self.rank = rank = arguments.rank
        torch.set_num_threads(1)
        groups = Groups(spec, rank, arguments.rendezvous)
        self.args = get_context().override_server_args(**self._flags(arguments)).install()
        place = groups.place
        get_parallel().override_permanently(
            tp_rank=rank % (spec.ranks * spec.contexts),
            pp_rank=place.stage,
            dp_rank=0,
            attn_tp_rank=place.rank,
            attn_dp_rank=0,
            attn_cp_rank=place.context,
            attn_dcp_rank=place.tokens,
            attn_dcp_size=spec.splits,
            attn_cp_group=SimpleNamespace(world_size=spec.contexts, pynccl_comm=None),
        )
        self.waiting: dict[str, Any] = {}
        self.locks: list[Any] = []
        self.pools = PhysicalPools(spec, place) if spec.is_physical else Pools(spec, place)
        self.params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.pools.requests,
            token_to_kv_pool_allocator=self.pools.allocator,
            page_size=spec.page,
            **groups.of_cache(),
            is_eagle=bool(spec.draft),
            mtp_draft_device_pools=self.pools.drafts if spec.draft == "packed" else (),
            sidecar_draft_device_pools=self.pools.drafts if spec.draft == "side" else (),
            sliding_window_size=spec.window or None,
            enable_mamba_extra_buffer=spec.recurrent,
            enable_kv_cache_events="publish" in arguments.extra,
        )
        endpoint = arguments.extra.pop("publish", "")
        change(arguments.extra.pop("change", ""), self.params)
        if forgotten := arguments.extra.pop("forget", ""):
            forget(forgotten)
        if pool := arguments.extra.pop("one_more", ""):
            load_one_more(pool)
        self.cache: Any = self._make_cache(groups.tensor)
        self.linker: Any = self.cache.linker
        self.free_at_start = self.free_slots()
        published = {"publisher": "zmq", "endpoint": endpoint, "replay_endpoint": f"{endpoint}-replay"}
        self.publisher = SchedulerKvEventsPublisher(
            kv_events_config=json.dumps(published) if endpoint else None,
            tree_cache=self.cache,
            send_metrics_from_scheduler=None,
            max_running_requests=8,
            max_total_num_tokens=SLOTS,
            get_stats=lambda: None,
        )

    def insert(self, number: AnyPrompt, pages: int) -> int:
        """Computes a prompt and inserts it into the tree. Returns the number of nodes that were stored."""
        tokens = pages * self.spec.page
        slots = self.pools.allocate(tokens)
        self.pools.write(number, slots)
        snapshot = self.pools.write_snapshot(number, tokens)
        value = InsertParams(key=self._key(number, tokens), value=slots.clone(), mamba_value=snapshot)
        return self._count_stored(lambda: self._insert(value))

    def restore(self, number: AnyPrompt, pages: int, request: str = "") -> Restored:
        """Matches a prompt, loads what the GPU lacks as in a batch of its own, and inserts it as if computed."""
        waiting = self.match(number, pages, request)
        return self.finish(self.begin([waiting]))[0]

    def restore_together(self, numbers: list[AnyPrompt], pages: int) -> list[Restored]:
        """Restores several prompts as one batch."""
        return self.finish(self.begin([self.match(number, pages) for number in numbers]))

    def match_only(self, request: str, number: AnyPrompt, pages: int) -> int:
        """Matches a prompt for a request that waits, and returns the tokens that it can load."""
        self.waiting[request] = self.match(number, pages, request)
        return int(self.waiting[request].hit)

    def load_matched(self, request: str) -> Restored:
        """Loads what match_only() has found."""
        return self.finish(self.begin([self.waiting.pop(request)]))[0]

    def queue_matched(self, request: str) -> int:
        """Queues the load of what match_only() has found, does not start it, and returns its tokens."""
        req = self.waiting[request]
        params = InitLoadBackParams(best_match_node=req.found.best_match_node, host_hit_length=req.hit, req=req)
        self.pools.remember()
        req.loaded = self.cache.init_load_back(params)[0]
        return int(req.loaded)

    def finish_queued(self, request: str) -> Restored:
        """Starts the batch of what queue_matched() has queued, and computes it."""
        req = self.waiting.pop(request)
        return self.finish((self.cache.ready_to_load_host_cache(), [req]))[0]

    def release(self, request: str) -> None:
        """Ends a request before its batch starts."""
        self.cache.release_aborted_request(CacheRequestHandle(request, 0))

    def match(self, number: AnyPrompt, pages: int, request: str = "") -> Any:
        """Returns a request after SGLang's match."""
        tokens = pages * self.spec.page
        request = request or f"request-{number}-{next(_NUMBERS)}"
        req = request_of(request, number)
        found = self.cache.match_prefix(MatchPrefixParams(key=self._key(number, tokens), req=req))
        req.last_node, req.prefix_len, req.found = found.last_device_node, found.device_prefix_len, found
        req.hit = found.host_hit_length
        return req

    def begin(self, waiting: list[Any]) -> tuple[int, list[Any]]:
        """Queues the loads of requests and starts them as one batch."""
        self.pools.remember()
        for req in waiting:
            params = InitLoadBackParams(best_match_node=req.found.best_match_node, host_hit_length=req.hit, req=req)
            req.loaded = self.cache.init_load_back(params)[0]
        return self.cache.ready_to_load_host_cache(), waiting

    def finish(self, batch: tuple[int, list[Any]]) -> list[Restored]:
        """Computes a batch layer by layer, compares what was loaded, and frees it."""
        index, waiting = batch
        counter = self.linker.layer_done_counter
        counter.set_consumer(index)
        for layer in range(self.pools.model_layers):
            counter.wait_until(layer)
        slots = {req.rid: self.linker.private_load_indices.get(req.rid) for req in waiting}
        equal = {req.rid: self._is_equal(req, slots[req.rid]) for req in waiting}
        only_loaded = self.pools.only_loaded()
        failed = {req.rid for req in self.cache.finish_external_linker_loads(waiting)}
        for req in waiting:
            if slots[req.rid] is not None:
                self._free(req, slots[req.rid])
        return [Restored(req.hit, req.loaded, equal[req.rid] and only_loaded, req.rid in failed) for req in waiting]

    def computes_at_once(self) -> None:
        """Reports a batch in which SGLang has computed a long prompt in no time."""
        mode = SimpleNamespace(
            is_extend_without_speculative=lambda: True, is_split_prefill=lambda: False, is_idle=lambda: False
        )
        batch = SimpleNamespace(forward_mode=mode, launch_ts=clock.now(), prefix_lens=[0], extend_lens=[10**9])
        self.linker.cache_linker.batch_ended(batch)

    def reset(self) -> None:
        """Empties the tree and the pools, as a restart of the engine does."""
        self.cache.reset()
        self.pools.clear()

    def free_slots(self) -> dict[str, int]:
        """Returns the free slots of each pool."""
        return self.pools.free_slots()

    def leaked(self) -> dict[str, int]:
        """Evicts all that nothing uses, and returns the slots of each pool that are still allocated."""
        self.cache.evict(EvictParams(*[self.pools.slots] * 3))
        free = self.free_slots()
        return {pool: count - free[pool] for pool, count in self.free_at_start.items() if count != free[pool]}

    def evict(self, tokens: int) -> int:
        """Evicts tokens from the GPU and returns how many may still be evicted."""
        self.cache.evict(EvictParams(num_tokens=tokens))
        return int(self.cache.full_evictable_size())

    def poll(self) -> int:
        """Executes one step without a batch, and returns the number of offloads in progress."""
        self.cache.check_hicache_events()
        self.publisher.publish_kv_events()
        return len(self.linker.pending_offloads)

    def events(self) -> list[Any]:
        """Returns the KV cache events since the last call, instead of publishing them."""
        return [msgspec.to_builtins(event) for event in self.cache.take_events()]

    def pending(self) -> int:
        """Waits until no offload is in progress."""
        eventually(lambda: not self.poll())
        return len(self.linker.pending_offloads)

    def close(self) -> None:
        """Closes the linker and leaves the group."""
        self.cache.release_host_resources()
        dist.destroy_process_group()

    def _key(self, number: AnyPrompt, tokens: int) -> Any:
        """Returns the key of these tokens; with pairs of tokens, each one needs the token after it."""
        return key_of(number, tokens + bool(self.spec.draft))

    def _insert(self, value: InsertParams) -> None:
        if self.cache.insert(value).mamba_exist:
            self.pools.requests.mamba_allocator.free(value.mamba_value)

    def _make_cache(self, group: Any) -> Any:
        """Returns SGLang's tree over the pools. `group` is that of all ranks of a stage."""
        runner = SimpleNamespace(forward_stream=None)
        worker = SimpleNamespace(model_runner=runner, register_hicache_layer_transfer_counter=lambda counter: None)
        return create_tree_cache(
            TreeCacheBuildContext(
                self.args,
                self.params,
                bool(self.spec.window),
                self.spec.recurrent,
                self.hierarchical,
                False,
                worker,
                None,
                self.spec.ranks * self.spec.contexts,
                self.rank % (self.spec.ranks * self.spec.contexts),
                group,
            )
        )

    def _flags(self, arguments: RankArguments) -> dict[str, Any]:
        adapters, more = arguments.extra.pop("lora", None), arguments.extra.pop("flags", {})
        return self._door_flags(arguments.extra) | {
            "device": "cpu",
            "model_path": str(arguments.model),
            "page_size": self.spec.page,
            "tp_size": self.spec.ranks * self.spec.contexts,
            "pp_size": self.spec.stages,
            "attn_cp_size": self.spec.contexts,
            "_mamba_cache_chunk_size": self.spec.page,
            "enable_lora": adapters,
            **more,
        }

    def _door_flags(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Returns the flags that select pagetier."""
        config = {
            "linker": "PagetierLinker",
            "linker_module_path": "pagetier.client.engines.sglang",
            "linker_extra_config": extra,
        }
        return {
            "enable_unified_cache_external_linker": True,
            "unified_cache_external_linker_backend": "dynamic",
            "unified_cache_external_linker_config": config,
        }

    def _is_equal(self, req: Any, slots: torch.Tensor | None) -> bool:
        """Returns whether all loaded state is that of the prompt. Nothing is equal if nothing was loaded."""
        if slots is None or len(slots) != req.loaded:
            return False
        ends, slot = req.prefix_len + req.loaded, req.kv.mamba_pool_idx
        has_tokens = self.pools.has(req.number, slots, ends)
        return has_tokens if slot is None else self.pools.has_snapshot(req.number, slot, ends) and has_tokens

    def _free(self, req: Any, slots: torch.Tensor) -> None:
        self.pools.free(slots)
        if req.kv.holds_mamba:
            self.pools.requests.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(0))

    def _count_stored(self, insert: Callable[[], object]) -> int:
        """Returns how many nodes were reported as stored after `insert` and until no offload is in progress."""
        results: list[bool] = []
        commit = self.linker.commit_completed_offloads

        def counted(successes: list[bool]) -> None:
            results.extend(successes)
            commit(successes)

        self.linker.commit_completed_offloads = counted
        try:
            insert()
            assert not self.pending(), "an offload did not end"
        finally:
            del self.linker.commit_completed_offloads
        return sum(results)
