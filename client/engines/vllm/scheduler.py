"""Decides which tokens of a prompt can be loaded, and which blocks are loaded and stored in each step."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence, Set
from secrets import token_hex
from typing import Any, Final

from pagetier.client.client import Client
from pagetier.client.engines.prefetch_thread import PrefetchThread
from pagetier.client.engines.vllm.arriving_pages import ArrivingPages, PrefixCache
from pagetier.client.engines.vllm.counters import ConnectorCounters, LookupCounts
from pagetier.client.engines.vllm.events import VllmEvents
from pagetier.client.engines.vllm.finished_hints import FinishedHints
from pagetier.client.engines.vllm.gpu_pages import GpuPages
from pagetier.client.engines.vllm.load_planner import load_command
from pagetier.client.engines.vllm.lora import LoraAdapters, groups_with, private_name
from pagetier.client.engines.vllm.messages import StepCommands
from pagetier.client.engines.vllm.namespace import PrivateNamespaces
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.request_state import NO_TOKENS, LoadedTokens, PinnedHit, RequestState
from pagetier.client.engines.vllm.steps import LoadedFirst, NextStep, StepTimes
from pagetier.client.engines.vllm.store_planner import late_store_commands
from pagetier.client.engines.vllm.tier_reads import ReadLimits, TierReads
from pagetier.client.keys import Namespace
from pagetier.shm import clock

_PINNED_S: Final = 2.0  # how long pages stay pinned for a request that is not scheduled


class SchedulerHalf:
    """The scheduler's half of the connector. Called by the one thread of vLLM's scheduler; no method blocks.

    Args:
        client: This process's client.
        groups: The groups in vLLM's order.
        limits: Which pages are read from disk and the fleet, and how long a request waits for them.
        events: Announces the pages of requests; None if KV cache events are disabled.
        private: The namespaces that no other engine can name.
        prefix_cache: Whether vLLM has a prefix cache of its own.

    Attributes:
        page_blocks: vLLM's blocks in a page.
        reads: Reads pages from disk and from the fleet.
        steps: Measures how long the steps of vLLM take.
        loaded_first: Lets vLLM reach the requests that are loaded.
        gpu_pages: The pages that are stored when they leave vLLM's cache; None to store each when it is computed.
        pool: vLLM's BlockPool; None if vLLM did not offer it.
        adapters: Identifies LoRA adapters; None if their pages are not shared with other engines.
        stores: Whether the workers execute store commands.
        caches_sessions: Whether requests that may get more tokens later (`resumable`) are cached.
        trusts_hits: Whether blocks in vLLM's own cache have the tokens of their hashes.
    """

    def __init__(
        self,
        client: Client,
        groups: Sequence[PagedGroup],
        limits: ReadLimits,
        events: VllmEvents | None = None,
        private: Iterable[Namespace] = (),
        prefix_cache: PrefixCache = PrefixCache.ON,
    ) -> None:
        self._client, self._groups, self.page_blocks = client, tuple(groups), groups[0].blocks
        self._prefetches = PrefetchThread(client)
        self.reads = TierReads(client, self._prefetches, limits)
        self.steps = StepTimes(self.reads.rule)
        self._arriving, self.loaded_first = ArrivingPages(prefix_cache), LoadedFirst()
        self._tracked: dict[str, RequestState] = {}
        self._next = NextStep(self._tracked)
        self._pins_expire_at = math.inf
        self._engine_id = token_hex(16)
        self._private = PrivateNamespaces(client, private)
        self.counters, self.events = ConnectorCounters(), events
        self._hints = FinishedHints(self._prefetches, self.counters)
        self._lookups = LookupCounts(client, self.counters)
        self.gpu_pages: GpuPages | None = None
        self.pool: Any = None
        self.adapters: LoraAdapters | None = None
        self.stores, self.caches_sessions, self.trusts_hits = True, True, True

    def arrived(self, request: Any) -> None:
        """Requests pages of a new request on disk and in the fleet: they are read while it waits for its turn."""
        tracked, skips = self._track(request), getattr(request, "skip_reading_prefix_cache", False)
        if not self.reads.any_tier or skips or not tracked.said.prefetch or tracked.is_excluded:
            return
        match = self._client.find_groups(tracked.keys_after(0), limit=request.num_tokens - 1)
        disk = tracked.is_in(self.pool, match.available_tokens) is False
        fleet = self.gpu_pages is None and self.reads.fleet.answers and not tracked.is_in(self.pool, match.asked)
        if self.reads.begin_early(tracked, match, disk=disk, fleet=fleet):
            self._lookups.record(tracked, match, 0)
        match.release()

    def sleeps(self, request: Any, computed: int) -> bool:
        """Returns whether a request still waits for a read, as when it was matched last. It is a cheap check."""
        tracked = self._tracked.get(request.request_id)
        return tracked is not None and tracked.computed == computed and clock.now() < tracked.wakes_at

    def matched(self, request: Any, computed: int) -> int | None:
        """Returns how many tokens can be loaded after the `computed` ones, or None if vLLM must ask again later."""
        tracked = self._track_again(request, computed)
        if tracked.loading:
            return None
        if tracked.has_failed or tracked.is_excluded:  # see step 4 of RequestState
            return 0
        if self._arriving.decide_wait(tracked, computed):
            tracked.release_hit()
            return None
        found = self._found(tracked, computed)
        if found is None:
            return None
        tracked.offered = max(0, found.tokens - computed) if found.is_loaded else 0
        return tracked.offered

    def expect(self, request: Any, computed: int) -> None:
        """Records how many tokens of a request vLLM has itself, before any connector loads more."""
        self._track_again(request, computed).is_new = True

    def allocated(self, request: Any, blocks: Sequence[Sequence[Any]], external: int) -> None:
        """Records the blocks of a request.

        Args:
            request: vLLM's Request.
            blocks: A row of blocks for each of vLLM's groups.
            external: The number of tokens to load into them.
        """
        tracked = self._track(request)
        self.loaded_first.allocated(request.request_id)
        found = tracked.found
        if found is not None and self.gpu_pages is None:
            tracked.mark_stored(found.match.available_tokens)
        if external and found is not None:
            tracked.loading_into = self._next.load(load_command(tracked, found, blocks, external))
            tracked.loading = True
            tracked.taken = found.taken(external)
            if external == tracked.offered:
                self._arriving.add(tracked, found.tokens)
        elif not external:
            self._lookups.count(tracked, NO_TOKENS)
            if tracked.is_new:  # vLLM calls this again after a load
                self._next.gives(request.request_id, blocks)

    def build(self, output: Any) -> StepCommands:
        """Returns the commands of a step. `output` is vLLM's SchedulerOutput."""
        commands = self._next.build(output, self.gpu_pages)
        if self.events is not None:
            self.events.scheduled(map(self._tracked.get, output.num_scheduled_tokens))
        self._arriving.end_step()
        self.loaded_first.end_step(output.num_scheduled_tokens)
        if (now := clock.now()) >= self._pins_expire_at:
            self._release_expired(now)
        self.steps.begin(output, self._tracked, now)
        return commands

    def failed(self, requests: Collection[str], blocks: Set[int]) -> None:
        """Records that a worker could not load these requests or blocks. Other workers may still be loading them."""
        if not requests and not blocks:
            return
        for name, tracked in self._tracked.items():
            if name in requests or (tracked.loading and tracked.loading_into & blocks):
                tracked.has_failed, tracked.taken = True, NO_TOKENS
                self._arriving.remove(name)

    def loaded(self, requests: Iterable[str], stored: Iterable[str] = ()) -> None:
        """Records that all workers have ended the loads of these requests, and the last stores of the others."""
        self._hints.stored(stored)
        for request in requests:
            if (tracked := self._tracked.get(request)) is not None:
                if tracked.taken.tokens:
                    self._lookups.count(tracked, tracked.taken)
                self.reads.loaded(tracked)
                tracked.loaded()
                self._arriving.end_load(request)
                if tracked.request.is_finished():
                    del self._tracked[request]
                else:
                    self.loaded_first.end_load(request)

    def finished(self, request: Any, blocks: Sequence[Sequence[int]]) -> bool:
        """Records the end of a request. Returns whether it must keep its blocks until a last store has ended."""
        self._arriving.remove(request.request_id)
        self.loaded_first.finished(request.request_id)
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return False
        late = late_store_commands(tracked, blocks)
        if self.gpu_pages is not None:
            late = [*self.gpu_pages.remember(late)]
        self._next.store(late)
        if self.events is not None:
            self.events.learn(tracked)
        if self.gpu_pages is None:
            # All pages count as used at the end, so that the beginning of the prompt is not evicted before its end.
            self._client.find_groups(tracked.keys_after(0)).release()
        tracked.release_hit()
        self._hints.finished(tracked, stores=self.stores and bool(late))
        if not tracked.loading:  # else workers still write into its blocks, and loaded() deletes it
            del self._tracked[request.request_id]
        return self.stores and bool(late)

    def by_tier(self, request: Any, external: int) -> LoadedTokens:
        """Returns where the tokens come from that a request loads."""
        found = tracked.found if (tracked := self._tracked.get(request.request_id)) is not None else None
        return found.taken(external) if found is not None else LoadedTokens(external, external)

    def renew(self) -> None:
        """Makes stored pages unreachable, because the weights may have changed: all groups get a new random salt.

        Pages in namespaces that only this engine could name are flushed. Running requests are not stored any more
        unless they are matched again, because some of their pages were computed or loaded before the reset and some are
        computed after it.
        """
        for tracked in self._tracked.values():
            tracked.release_hit()
            tracked.exclude()
        for of_old_weights in (self._arriving, self.events, self.gpu_pages):
            if of_old_weights is not None:
                of_old_weights.clear()
        salt = token_hex(16)
        self._groups = tuple(group.with_salt(salt) for group in self._groups)
        self._private.renew(group.namespace for group in self._groups)

    def close(self) -> None:
        """Releases all pins and closes the client."""
        self._prefetches.close()
        if self.adapters is not None:
            self.adapters.close()
        self._private.close()
        for tracked in self._tracked.values():
            tracked.loaded()
        self._tracked.clear()
        self._client.close()

    def _track(self, request: Any) -> RequestState:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            self._next.changes()
            said = self._hints.read(request)
            tracked = self._tracked[request.request_id] = RequestState(request, self._groups_of(request), said)
            if not self.caches_sessions and getattr(request, "resumable", False):
                # A block of it may have other tokens than its hash says, in vLLM's own cache, too.
                self.trusts_hits = False
                tracked.exclude()
        return tracked

    def _track_again(self, request: Any, computed: int) -> RequestState:
        """Returns the state of a request that is matched, of which vLLM has `computed` tokens itself.

        A request that was excluded begins with a new state: vLLM computes all of it again, after a reset of its own
        cache or a preemption.
        """
        before = self._tracked.get(request.request_id)
        if before is not None and before.is_excluded and not before.loading:
            del self._tracked[request.request_id]
        tracked = self._track(request)
        tracked.computed = computed
        if before is not None:
            tracked.counted, tracked.is_new, tracked.has_failed = before.counted, before.is_new, before.has_failed
        if computed and not self.trusts_hits:
            tracked.exclude()
        return tracked

    def _groups_of(self, request: Any) -> tuple[PagedGroup, ...]:
        adapter = getattr(request, "lora_request", None)
        if adapter is None:
            return self._groups
        name = self.adapters.name_of(adapter) if self.adapters else private_name(self._engine_id, adapter)
        return groups_with(self._groups, name)

    def _found(self, tracked: RequestState, computed: int) -> PinnedHit | None:
        """Returns the pinned pages of a request, or None while it waits for the disk or the fleet."""
        # What was not stored because vLLM's own cache has it is no miss.
        begins = computed // tracked.grain * tracked.grain if self.gpu_pages is not None else 0
        keys, found, now = tracked.keys_after(begins), tracked.found, clock.now()
        if found is not None and found.begins == begins and now - found.since < _PINNED_S:
            return found  # new hashes have released the pinned pages
        if self.reads.decide_wait(tracked, computed - begins, now):
            return None
        tracked.release_hit()
        match = self._client.find_groups(keys, limit=tracked.request.num_tokens - 1 - begins)
        tokens = begins + match.tokens
        self._lookups.record(tracked, match, begins)
        if self.reads.begin(tracked, match, computed - begins, now):
            match.release()
            return None
        reads_fleet = tracked.fleet is not None and tracked.fleet.hit is not None
        on_host = min(tokens, tracked.on_host) if reads_fleet else tokens
        loads = self.reads.loads_from_memory(tracked, range(computed, tokens), now)
        tracked.found = PinnedHit(match, tokens, min(tokens, tracked.from_memory), on_host, now, begins, loads)
        self._pins_expire_at = min(self._pins_expire_at, now + _PINNED_S)
        return tracked.found

    def _release_expired(self, now: float) -> None:
        self._pins_expire_at = math.inf
        for tracked in self._tracked.values():
            if tracked.found is not None and now - tracked.found.since >= _PINNED_S:
                tracked.release_hit()
            elif tracked.found is not None:
                self._pins_expire_at = min(self._pins_expire_at, tracked.found.since + _PINNED_S)
