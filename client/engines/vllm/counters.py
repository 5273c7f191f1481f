"""Counts lookups, stored pages and failed loads for vLLM's own metrics and the daemon."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from pagetier.client.client import Client
from pagetier.client.engines.vllm.request_state import LoadedTokens, RequestState
from pagetier.client.group_match import GroupMatch
from pagetier.client.session_lookups import count_lookup, sample_lookup
from pagetier.client.tier_speed import LoadTier

HELP: Final = {
    "memory_tokens": "Prompt tokens loaded from pagetier's memory.",
    "disk_tokens": "Prompt tokens loaded from pagetier's disk.",
    "remote_tokens": "Prompt tokens loaded from pagetier's fleet.",
    "memory_slower_tokens": "Prompt tokens in pagetier's memory that were computed because loading them was slower.",
    "disk_slower_tokens": "Prompt tokens on pagetier's disk that were computed because loading them was slower.",
    "remote_slower_tokens": "Prompt tokens in pagetier's fleet that were computed because loading them was slower.",
    "stored_pages": "Pages, or parts of pages, stored in pagetier.",
    "wrong_hints": "Requests whose hints were wrong and therefore ignored.",
    "unstored_pages": 'Pages that left the GPU before they could be stored, with "store": "on_eviction".',
    "failed_loads": "Requests that were recomputed because their pages could not be loaded.",
}


class ConnectorCounters:
    """Counters by name since the last report; HELP lists them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def hit(self, taken: LoadedTokens) -> None:
        """Counts loaded tokens by tier."""
        self._counts["memory_tokens"] += taken.from_memory
        self._counts["disk_tokens"] += taken.from_disk
        self._counts["remote_tokens"] += taken.from_fleet

    def add(self, name: str, count: int) -> None:
        """Adds `count` to another counter."""
        if count:
            self._counts[name] += count

    def taken(self) -> dict[str, int]:
        """Returns the counts that are not 0, and resets them."""
        if not self._counts:
            return {}  # as in most steps
        counts, self._counts = self._counts, Counter()
        return {name: count for name, count in counts.items() if count}


class LookupCounts:
    """Counts the results of lookups for the daemon and for vLLM, once for each request.

    A request is matched several times: after the disk was asked, when its pins were released because it waited too
    long, when it was preempted, when its load failed. It counts once, when it was loaded or begins without a load.
    Tokens that vLLM had in its own cache do not count.
    """

    def __init__(self, client: Client, counters: ConnectorCounters) -> None:
        self._client, self._counters = client, counters

    def record(self, tracked: RequestState, match: GroupMatch, begins: int) -> None:
        """Records what the first match after `begins` tokens has found, before any of it is read from disk."""
        if tracked.lookup is None:
            sample_lookup(self._client.session, match)
            found = match.lookup
            tracked.lookup = msgspec.structs.replace(found, memory_tokens=begins + found.memory_tokens)
        if tracked.from_memory < 0:
            tracked.from_memory, tracked.on_host = begins + match.tokens, begins + match.available_tokens

    def count(self, tracked: RequestState, taken: LoadedTokens) -> None:
        """Counts the lookup of a request that has loaded these tokens, unless it was counted before."""
        if tracked.counted or tracked.lookup is None:
            return
        tracked.counted = True
        missed = max(0, tracked.lookup.asked_tokens - tracked.computed - taken.tokens)
        slower = _slower(tracked, missed)
        count_lookup(
            self._client.session,
            msgspec.structs.replace(
                tracked.lookup,
                memory_tokens=taken.from_memory,
                disk_tokens=taken.from_disk,
                missed_tokens=missed,
                remote_tokens=taken.from_fleet,
                **slower,
            ),
        )
        self._counters.hit(taken)
        for name, tokens in slower.items():
            self._counters.add(name, tokens)


def _slower(tracked: RequestState, missed: int) -> dict[str, int]:
    """Returns how many of the missed tokens each tier has that was slower than computing; nothing for most requests."""
    of_fleet = tracked.fleet.slower_tokens if tracked.fleet is not None else 0
    if not (tracked.slower or of_fleet):
        return {}
    in_memory = min(missed, tracked.slower.get(LoadTier.MEMORY, 0))
    on_disk = min(missed - in_memory, tracked.slower.get(LoadTier.DISK, 0))
    by_tier = {
        LoadTier.MEMORY: in_memory,
        LoadTier.DISK: on_disk,
        LoadTier.FLEET: min(missed - in_memory - on_disk, of_fleet),
    }
    return {f"{tier}_slower_tokens": tokens for tier, tokens in by_tier.items()}
