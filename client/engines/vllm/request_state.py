"""Keeps the scheduler's state of each request: the keys of its pages, its blocks, and its pinned pages.

A request passes through these steps, in which vLLM calls the method of SchedulerHalf that is named:

1. **Arrived** (`arrived`). Its pages on disk and in the fleet are requested. Nothing stays pinned, because the request
   may wait for seconds.
2. **Looked up** (`matched`), in each step in which vLLM could begin it. The hit is pinned in `found` before vLLM
   allocates blocks for it: what is offered must not be evicted. A request is asked for again later, with nothing
   pinned, while its pages arrive from disk, from the fleet or for another request (also see `LoadedFirst`).
3. **Allocated** (`allocated`). Pages that are cached already need no store from now on. If vLLM takes the hit, the load
   command is queued. A hit that it does not take is released after 2 seconds.
4. **Loading**, until all workers have reported. vLLM neither computes the request nor frees its blocks. `found` stays
   pinned, because a worker pins the pages only when it begins. `failed` comes before `loaded`, so that a failed load is
   no hit. Then `found` is released. A request whose load failed is computed: vLLM (0.32) would reserve room for both.
5. **Computed** (`build`), in each step. First the blocks of the step are added to `tables`. Then each page that the
   step completes gets its store command, the only one: `stored` moves behind it. One step later vLLM may have freed
   the block of a window or of a recurrent state.
6. **Stored**, by the workers, after they have computed the step. Nothing keeps the block until then: the commands of
   each later step name the blocks that get new content, and a worker first ends the stores that read them.
7. **Preempted**. vLLM frees all blocks, and looks the request up again from its first token. The step that resumes it
   replaces `tables`. `stored` stays: the pages were handed over, and one whose store was cancelled is only a miss.
8. **Finished** (`finished`). Pages that had no keys before get their commands. The next step sends them, and may give
   the blocks to others itself. So these stores alone retain the blocks, until all workers report that they have ended.
   Then `found` is released.
9. **Aborted** (`finished`, too), in any of these steps. During a load the state stays until step 4 has ended, since the
   workers read pinned pages and write into the blocks. Else it ends as in step 8.

A request that is **excluded** stores and announces no more pages, because some of its state may be wrong. If pages are
stored when they leave vLLM's own cache, GpuPages takes the commands of steps 5 and 8 instead of the workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pagetier.client.engines.fleet_reads import FleetRead
from pagetier.client.engines.prefetch_thread import PendingPrefetch
from pagetier.client.engines.request_hints import NOTHING, RequestHints
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.group_match import GroupKeys, GroupMatch, Lookup
from pagetier.client.groups import grain_of
from pagetier.client.keys import Keys
from pagetier.client.tier_speed import LoadTier

_NEVER: Final = 2**62


class LoadedTokens(msgspec.Struct, frozen=True):
    """Tokens that a request loads.

    Attributes:
        tokens: Their number.
        from_memory: Those of them that were found in memory.
        from_fleet: Those of them that came from the fleet.
    """

    tokens: int
    from_memory: int
    from_fleet: int = 0

    @property
    def from_disk(self) -> int:
        """Those of them that came from disk."""
        return self.tokens - self.from_memory - self.from_fleet


NO_TOKENS: Final = LoadedTokens(0, 0)


class PinnedHit(msgspec.Struct, frozen=True, eq=False):
    """Pages that are pinned for a request.

    Attributes:
        match: The match that pins them.
        tokens: The end of the hit, in tokens from the begin of the prompt.
        from_memory: The tokens before the end that came neither from disk nor from the fleet.
        on_host: The tokens before the end that did not come from the fleet.
        since: The time of the match, by the clock.
        begins: The tokens before the first page that was looked up.
        is_loaded: Whether it is offered to vLLM; else the request computes these tokens.
    """

    match: GroupMatch
    tokens: int
    from_memory: int
    on_host: int
    since: float
    begins: int = 0
    is_loaded: bool = True

    def taken(self, external: int) -> LoadedTokens:
        """Returns where the last `external` tokens of the hit came from."""
        before = self.tokens - external
        from_memory, on_host = max(before, self.from_memory), max(before, self.on_host)
        return LoadedTokens(external, from_memory - before, self.tokens - on_host)


class RequestState:
    """One request, from its first match to its end.

    Attributes:
        request: vLLM's Request.
        groups: The groups of the model, with the namespaces of this request.
        found: The pages that are pinned for it.
        early: The read from disk that it has begun when it arrived.
        prefetch: The read from disk for which it waits, or has waited.
        disk_wait_ends: The time until which it waits for the disk, by the clock.
        slower: Its tokens in memory and on disk that are not loaded, because computing them is faster.
        is_try: Whether it computes its tokens on disk to measure computing.
        fleet: The question to the fleet for its pages, and the read of them.
        fleet_wait_begins: The time from which on it waits for the fleet; 0 before it waits.
        wakes_at: The time until which it waits whatever vLLM asks, by the clock; a read that ends sets it to 0.
        asks_fleet_again: Whether it may ask once more, because it shared the question of another request.
        from_memory: The tokens that its first match found in memory; -1 before.
        on_host: The tokens that its first match found in memory or on disk.
        loading: Whether a load is in progress.
        has_failed: Whether a load failed, so that it is computed before another load.
        offered: The number of tokens that vLLM can load, as returned last.
        computed: The number of tokens that vLLM had itself at the last match.
        is_new: Whether it was matched and not computed since.
        lookup: The result of the first match, for the statistics.
        taken: The tokens being loaded, until the load fails.
        counted: Whether the statistics contain the request.
        loading_into: The blocks that are being loaded.
        awaited: The request whose load it waits for; empty if it does not wait. See ArrivingPages.
        awaited_tokens: The most tokens that it has waited for, counted from the begin of the prompt.
        waited_again: Whether it has waited once more after it found less than it waited for.
        stored: For each group the first page without a store command.
        tables: For each group vLLM's blocks.
        said: What the request says of its session.
        learned_hashes: The number of hashes whose pages the events know.
        grain: The number of tokens of which the length of every hit is a multiple.
    """

    def __init__(self, request: Any, groups: Sequence[PagedGroup], said: RequestHints = NOTHING) -> None:
        self.request = request
        self.said = said
        self.groups = groups
        self.found: PinnedHit | None = None
        self.early: PendingPrefetch | None = None
        self.prefetch: PendingPrefetch | None = None
        self.fleet: FleetRead | None = None
        self.disk_wait_ends = self.fleet_wait_begins = self.wakes_at = 0.0
        self.slower: dict[LoadTier, int] = {}
        self.asks_fleet_again = True
        self.from_memory = self.on_host = -1
        self.loading = self.is_new = self.is_try = self.counted = self.waited_again = self.has_failed = False
        self.offered = self.computed = 0
        self.lookup: Lookup | None = None
        self.taken = NO_TOKENS
        self.loading_into: frozenset[int] = frozenset()
        self.awaited = ""
        self.awaited_tokens = 0
        self.stored = [0] * len(groups)
        self.tables: list[list[int]] = [[] for _ in groups]
        self.grain = grain_of(group.kind for group in groups)
        self.learned_hashes = 0
        self._planned_until = self._completes_next = 0
        self._keys = [Keys(group.namespace, b"") for group in groups]
        self._hashed = 0
        self._last: Sequence[bytes] = []

    def wake(self) -> None:
        """Lets the next question of vLLM find out what has become of a read. Called in any thread."""
        self.wakes_at = 0.0

    def set_tables(self, tables: Sequence[Sequence[int]]) -> None:
        """Replaces the blocks by those of vLLM's groups. All divisions of the ranks have the same blocks."""
        self.tables = [list(tables[group.number]) for group in self.groups]

    def extend_tables(self, tables: Sequence[Sequence[int]], *, resumed: bool) -> None:
        """Adds blocks of vLLM's groups; a request that is resumed has no others."""
        if resumed:
            self.set_tables(tables)
            return
        for group, table in zip(self.groups, self.tables, strict=True):
            table.extend(tables[group.number])

    def first_block_after(self, number: int, tokens: int) -> int:
        """Returns the first block of vLLM's group `number` that has none of the first `tokens` tokens.

        It is 0 for a group without pages: its blocks are those of the request alone.
        """
        blocks = (group.block_tokens for group in self.groups if group.number == number)
        return tokens // next(blocks, tokens + 1)

    @property
    def keys(self) -> list[Keys]:
        """For each group the keys of all pages that vLLM has hashed so far."""
        hashes = self.request.block_hashes
        if len(hashes) == self._hashed and hashes[-1:] == self._last:
            return self._keys
        if self._hashed and hashes[self._hashed - 1 : self._hashed] != self._last:
            self._hash_again(hashes)
        elif len(hashes) > self._hashed:
            self._keys = [self._extended(at, hashes, self._keys[at]) for at in range(len(self.groups))]
        self._hashed, self._last = len(hashes), hashes[-1:]
        return self._keys

    @property
    def finest_keys(self) -> Keys:
        """The keys in the group with the shortest pages."""
        return min(self.keys, key=lambda keys: keys.namespace.page_tokens)

    def keys_after(self, tokens: int) -> list[GroupKeys]:
        """Returns the keys of the pages after the first `tokens` tokens for a match, the engine's groups first."""
        asked: list[GroupKeys] = []
        behind: list[GroupKeys] = []
        for group, keys in zip(self.groups, self.keys, strict=True):
            later = keys[tokens // group.kind.page_tokens :] if tokens else keys
            asked.append(GroupKeys(group.kind, later))
            behind.extend(group.after_a_hit(later))
        return asked + behind

    def is_in(self, pool: Any, tokens: int) -> bool | None:
        """Returns whether vLLM's BlockPool has the page before `tokens`; None if that is not known."""
        group, hashes = self.groups[0], self.request.block_hashes
        pages = tokens // group.kind.page_tokens
        if group.hashes != group.blocks or pool is None or not pages:
            return None
        return pool.get_cached_block(hashes[pages * group.hashes - 1], [group.number]) is not None

    def mark_stored(self, tokens: int) -> None:
        """Records that the first `tokens` tokens are cached and need not be stored."""
        for at, group in enumerate(self.groups):
            self.stored[at] = max(self.stored[at], tokens // group.kind.page_tokens)

    def completes_no_page(self, begins: int, ends: int) -> bool:
        """Returns whether a step from `begins` to `ends` tokens certainly completes no page. It is a cheap check."""
        return self._planned_until <= begins and ends < self._completes_next

    def steps_before_page(self, ends: int) -> int:
        """Returns how many steps of a token complete no page after `ends` tokens; negative if one is left out now."""
        return self._completes_next - ends - 1

    def mark_planned(self, ends: int) -> None:
        """Records that all pages that are complete at `ends` tokens have store commands, if they could have them."""
        self._planned_until, self._completes_next = ends, _NEVER
        for group, stored in zip(self.groups, self.stored, strict=True):
            self._completes_next = min(self._completes_next, self._next_store(group, stored, ends))

    def _next_store(self, group: PagedGroup, stored: int, ends: int) -> int:
        """Returns the tokens from which a group has a page to store; 0 if one that is complete was not stored."""
        prompt_tokens, page_tokens = int(self.request.num_prompt_tokens), group.kind.page_tokens
        pages = group.stable(ends, prompt_tokens) // page_tokens
        if stored < pages and group.has_every_page:
            return 0
        tokens = (pages + 1) * page_tokens
        return tokens if tokens <= prompt_tokens else tokens + group.volatile * page_tokens

    def plan_again(self) -> None:
        """Makes the next step plan the stores of all pages again, because the request has got other blocks."""
        if not self.is_excluded:
            self.stored, self._planned_until, self._completes_next = [0] * len(self.groups), 0, 0

    @property
    def is_excluded(self) -> bool:
        """Whether it stores nothing more, see exclude()."""
        return self.stored[0] == _NEVER

    def exclude(self) -> None:
        """Prevents all further stores: the weights have changed, or another connector may have loaded wrong tokens."""
        self.stored = [_NEVER] * len(self.groups)
        self.wake()

    def release_hit(self) -> None:
        """Releases the pinned pages unless a load is in progress."""
        if self.found is not None and not self.loading:
            self.found.match.release()
            self.found = None

    def loaded(self) -> None:
        """Records that all workers have ended the load, successfully or not."""
        self.loading = self.is_new = False  # first, since release_hit() spares the pages of a load
        self.from_memory = self.on_host = -1
        self.taken = NO_TOKENS
        self.release_hit()

    def _hash_again(self, hashes: Sequence[bytes]) -> None:
        """Recomputes all keys: the session was continued after another token, so that earlier hashes have changed."""
        self.release_hit()  # it may have pages of the tokens that are gone
        self.learned_hashes = 0
        for at, group in enumerate(self.groups):
            before = self._keys[at]
            after = self._keys[at] = self._extended(at, hashes, Keys(group.namespace, b""))
            if not self.is_excluded:
                self.stored[at] = min(self.stored[at], _common_prefix(before, after))  # later pages have other content

    def _extended(self, at: int, hashes: Sequence[bytes], keys: Keys) -> Keys:
        group = self.groups[at]
        more = hashes[(len(keys) + 1) * group.hashes - 1 :: group.hashes]
        return Keys(group.namespace, keys.data + group.keys(more).data)


def _common_prefix(one: Keys, other: Keys) -> int:
    """Returns the number of keys in the common prefix."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
