"""Finds and pins what a request can load, and keeps it pinned until the request loads it or a lease ends.

Pages that are not in memory are read for a later lookup, from disk or from the fleet, on a thread of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from pagetier.client.client import Client
from pagetier.client.engines.sglang.engine.settings import LinkerSettings
from pagetier.client.engines.sglang.engine.tier_counts import BegunReads, UncountedLookup
from pagetier.client.engines.sglang.linker.reading import Reading
from pagetier.client.engines.sglang.pools.device_pools import FULL, WINDOW
from pagetier.client.engines.sglang.pools.engine_groups import EngineGroup, by_pool, hashes_of
from pagetier.client.group_match import GroupKeys, GroupMatch
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from pagetier.client.match import Match, MatchHandle
from pagetier.client.session_lookups import adopt
from pagetier.shm import clock
from pagetier.shm.page_rows import PAGE_KEYS

_MOST_LENGTHS: Final = 64
"""The most lengths of a hybrid model that are looked up for one request."""
_MOST_ENDED: Final = 64
"""The most leases that are remembered after their end. The requests of older ones are computed."""

_TIERS_S: Final = 0.05
"""Seconds between two checks for a disk or a fleet."""


class Hit(msgspec.Struct, frozen=True, eq=False):
    """Pinned pages with which a prefix can be restored.

    Attributes:
        pages: The length of the prefix in pages.
        matches: The pages of each group that it needs.
    """

    pages: int
    matches: tuple[Match, ...]

    def release(self) -> None:
        """Unpins the pages."""
        for match in self.matches:
            match.release()


class _UnpinnedHit(msgspec.Struct, frozen=True, eq=False):
    """The pages of a Hit, by their serials."""

    pages: int
    matches: tuple[MatchHandle, ...]


_AnyHit = TypeVar("_AnyHit", Hit, _UnpinnedHit)


class _EndedLease(msgspec.Struct, frozen=True, eq=False):
    """What was promised to one request until its lease ended. It pins nothing."""

    hashes: bytes
    hits: tuple[_UnpinnedHit, ...]


class _Lease(msgspec.Struct, eq=False):
    """Holds the pinned pages of one request, the reads that it has begun, and its uncounted lookup."""

    ends: float
    hashes: bytes
    hits: list[Hit]
    page_tokens: int
    reads: BegunReads
    uncounted: UncountedLookup | None = None

    @property
    def tokens(self) -> int:
        return self.hits[0].pages * self.page_tokens if self.hits else 0

    def release(self) -> None:
        if self.uncounted is not None:
            self.uncounted.end(self.tokens)
        for hit in self.hits:
            hit.release()

    def end(self) -> _EndedLease:
        """Unpins the pages, and returns which they were."""
        hits = tuple(_UnpinnedHit(hit.pages, tuple(match.to_handle() for match in hit.matches)) for hit in self.hits)
        self.release()
        return _EndedLease(self.hashes, hits)


class Lookups:
    """The lookups of SGLang's scheduler. Not thread-safe: its one thread calls all methods, and none of them waits.

    Args:
        client: The client.
        groups: The groups, the one with full attention first.
        reading: Reads pages that are not in memory; None if another rank does so.
        settings: The settings.
        several_ranks: Whether the ranks have to agree, which takes all lengths instead of the longest one.
    """

    def __init__(
        self,
        client: Client,
        groups: Sequence[EngineGroup],
        reading: Reading | None,
        settings: LinkerSettings,
        *,
        several_ranks: bool,
    ) -> None:
        self._client, self._groups, self._reading = client, tuple(groups), reading
        self._settings = settings
        self._most = _MOST_LENGTHS if several_ranks else 1
        self._leases: dict[str, _Lease] = {}
        self._ended: dict[str, _EndedLease] = {}
        self._has_tiers, self._check_at = False, 0.0

    def lookup(self, request: str, transfers: Sequence[Any]) -> list[int]:
        """Returns the lengths in pages that can be restored, pinned for the request. One rank returns the longest only.

        Args:
            request: The ID of the request.
            transfers: SGLang's transfers, with the hashes of all pages that are not on the GPU.
        """
        self.expire()
        pools = by_pool(transfers)
        hashes = hashes_of(pools[FULL].keys)
        before = self._leases.pop(request, None)
        self._ended.pop(request, None)
        if self._has_tiers or (before is not None and before.reads):
            lease = self._reading_lease(hashes, self._client.find_groups(self._group_keys(hashes, pools)), before)
        else:
            match = self._match(hashes, pools, before)
            if before is None and not match.available_tokens:
                return []  # as for most prompts
            lease = self._pinned(hashes, match, BegunReads())
        if before is not None:  # only now, so that pages of both lookups stay pinned throughout
            before.release()
        if lease.hits or lease.reads or lease.uncounted is not None:
            self._leases[request] = lease
        return self._lengths(lease.hits)

    def take(self, request: str, transfers: Sequence[Any]) -> Hit | None:
        """Returns the pages for a load of exactly these transfers, which the caller releases.

        They are the pages that the request's last lookup has found. After the end of its lease they are pinned again by
        their serials. Returns None if one of them is gone, even if its key was stored again.
        """
        pools = by_pool(transfers)
        hashes, pages = hashes_of(pools[FULL].keys), len(pools[FULL].keys)
        lease, ended = self._leases.pop(request, None), self._ended.pop(request, None)
        if lease is not None:
            if lease.uncounted is not None:
                lease.uncounted.end(pages * lease.page_tokens)
            return self._chosen(lease, hashes, pages)
        return self._pinned_again(ended, hashes, pages) if ended is not None else None

    def expire(self) -> None:
        """Unpins the pages of leases that have ended."""
        now = clock.now()
        if now >= self._check_at:  # the check takes a tenth of a lookup that misses
            self._has_tiers, self._check_at = self._has_tiers_to_read(), now + _TIERS_S
        while self._leases:
            request, lease = next(iter(self._leases.items()))
            if lease.ends > now:
                return
            ended = self._leases.pop(request).end()
            if ended.hits:
                self._ended[request] = ended
        while len(self._ended) > _MOST_ENDED:
            self._ended.pop(next(iter(self._ended)))

    def release(self) -> None:
        """Ends all leases, and forgets those that have ended."""
        for lease in self._leases.values():
            lease.release()
        self._leases.clear()
        self._ended.clear()

    def _lengths(self, hits: Sequence[Hit]) -> list[int]:
        if len(self._groups) == 1 and self._most > 1:
            return list(range(1, hits[0].pages + 1)) if hits else []
        return [hit.pages for hit in reversed(hits)]

    def _has_tiers_to_read(self) -> bool:
        """Returns whether this rank reads pages from disk or from a fleet that answers."""
        session = self._client.session
        return self._reading is not None and session is not None and bool(session.disk_bytes or session.asks_fleet)

    def _match(self, hashes: bytes, pools: Mapping[str, Any], before: _Lease | None) -> Match | GroupMatch:
        """Returns what memory has. The first lookup of a request counts."""
        alone = len(self._groups) == 1
        if before is None:
            if alone:
                return self._client.match(self._groups[0].keys(hashes))
            return self._client.match_groups(self._group_keys(hashes, pools))
        hit = before.hits[0] if alone and before.hits and before.hashes == hashes else None
        if hit is not None and hit.matches[0].asked == PAGE_KEYS.count(hashes) and self._is_mapped(hit):
            return hit.matches[0].again()
        return self._client.find_groups(self._group_keys(hashes, pools))

    def _reading_lease(self, hashes: bytes, match: GroupMatch, before: _Lease | None) -> _Lease:
        """Returns the lease of a request, after beginning to read what it lacks, which is done once."""
        reads = before.reads if before is not None else BegunReads()
        if self._reading is not None:
            self._reading.begin(match, reads)
        lease = self._pinned(hashes, match, reads)
        if before is None:
            lease.uncounted = UncountedLookup(self._client, match, reads)
        else:
            lease.uncounted, before.uncounted = before.uncounted, None
        if lease.uncounted is not None:
            lease.uncounted.found(lease.tokens)
        return lease

    def _pinned(self, hashes: bytes, match: Match | GroupMatch, reads: BegunReads) -> _Lease:
        page_tokens = self._groups[0].cache.page_tokens
        hits: list[Hit] = []
        while match.tokens:
            matches = match.matches if isinstance(match, GroupMatch) else (match,)
            hits.append(Hit(match.tokens // page_tokens, matches))
            if isinstance(match, Match) or len(self._groups) == 1 or len(hits) >= self._most:
                break
            match = self._client.find_groups(match.groups, match.tokens - page_tokens)
        return _Lease(clock.now() + self._settings.lease, hashes, hits, page_tokens, reads)

    def _group_keys(self, hashes: bytes, pools: Mapping[str, Any]) -> tuple[GroupKeys, ...]:
        return tuple(GroupKeys(_kind(group, pools), group.keys(hashes)) for group in self._groups)

    def _chosen(self, lease: _Lease, hashes: bytes, pages: int) -> Hit | None:
        """Returns the hit of a lease for a load, and releases all others."""
        chosen = None
        if lease.hashes.startswith(hashes) and all(map(self._is_mapped, lease.hits)):
            chosen = self._of_length(lease.hits, pages)
        for hit in lease.hits:
            if hit is not chosen:
                hit.release()
        return chosen

    def _pinned_again(self, lease: _EndedLease, hashes: bytes, pages: int) -> Hit | None:
        """Returns the hit of a lease that has ended, or None if one of its pages is gone."""
        chosen = self._of_length(lease.hits, pages) if lease.hashes.startswith(hashes) else None
        if chosen is None:
            return None
        session = self._client.session
        hit = Hit(chosen.pages, tuple(adopt(session, pages) for pages in chosen.matches))
        if all(len(found) == len(wanted) for found, wanted in zip(hit.matches, chosen.matches, strict=True)):
            return hit
        hit.release()
        return None

    def _of_length(self, hits: Iterable[_AnyHit], pages: int) -> _AnyHit | None:
        """Returns the hit with which this prefix can be restored. One group alone needs no particular length."""
        alone = len(self._groups) == 1
        return next((hit for hit in hits if hit.pages == pages or (alone and hit.pages > pages)), None)

    def _is_mapped(self, hit: Hit) -> bool:
        """Returns whether the pages are in the segments that are mapped now."""
        session = self._client.session
        return session is not None and session.usable and all(match.session is session for match in hit.matches)


def _kind(group: EngineGroup, pools: Mapping[str, Any]) -> Group:
    """Returns what a hit needs of a group. Of a window SGLang loads whole pages, so their number determines it."""
    page_tokens = group.cache.page_tokens
    if group.name == FULL:
        return FullAttention(page_tokens)
    if group.name == WINDOW:
        return SlidingWindow(page_tokens, window=len(pools[WINDOW].keys) * page_tokens + 1)
    return Recurrent(page_tokens)
