"""Finds and pins what a request can load, and keeps it pinned until the request loads it or a lease ends."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from pagetier.client.client import Client
from pagetier.client.engines.prefetch_thread import PendingPrefetch, PrefetchThread
from pagetier.client.engines.sglang.device_pools import FULL, WINDOW
from pagetier.client.engines.sglang.engine_groups import EngineGroup, by_pool, hashes_of
from pagetier.client.engines.sglang.settings import LinkerSettings
from pagetier.client.group_match import GroupKeys, GroupMatch
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from pagetier.client.match import Match, MatchHandle

_MOST_LENGTHS: Final = 64
"""The most lengths of a hybrid model that are looked up for one request."""
_MOST_ENDED: Final = 64
"""The most leases that are remembered after their end. The requests of older ones are computed."""


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
    """What is promised to one request."""

    ends: float
    hashes: bytes
    hits: list[Hit]
    prefetch: PendingPrefetch | None = None

    def release(self) -> None:
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
        prefetch: Requests pages on disk; None if another rank does so.
        settings: The settings.
        several_ranks: Whether the ranks have to agree, which takes all lengths instead of the longest one.
    """

    def __init__(
        self,
        client: Client,
        groups: Sequence[EngineGroup],
        prefetch: PrefetchThread | None,
        settings: LinkerSettings,
        *,
        several_ranks: bool,
    ) -> None:
        self._client, self._groups, self._prefetch = client, tuple(groups), prefetch
        self._settings = settings
        self._most = _MOST_LENGTHS if several_ranks else 1
        self._leases: dict[str, _Lease] = {}
        self._ended: dict[str, _EndedLease] = {}

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
        match = self._match(hashes, pools, counted=before is None)
        if before is None and not match.available_tokens:
            return []  # as for most prompts
        lease = self._pinned(hashes, pools, match)
        if match.available_tokens > match.tokens:
            lease.prefetch = before.prefetch if before and before.prefetch else self._request(match)
        if before is not None:
            before.release()
        if lease.hits or lease.prefetch:
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
            return self._chosen(lease, hashes, pages)
        return self._pinned_again(ended, hashes, pages) if ended is not None else None

    def expire(self) -> None:
        """Unpins the pages of leases that have ended."""
        now = time.monotonic()
        while self._leases:
            request, lease = next(iter(self._leases.items()))
            if lease.ends > now:
                return
            self._ended[request] = self._leases.pop(request).end()
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

    def _match(self, hashes: bytes, pools: Mapping[str, Any], *, counted: bool) -> Match | GroupMatch:
        if len(self._groups) == 1:
            return self._client.match(self._groups[0].keys(hashes))
        find = self._client.match_groups if counted else self._client.find_groups
        return find(self._group_keys(hashes, pools))

    def _pinned(self, hashes: bytes, pools: Mapping[str, Any], match: Match | GroupMatch) -> _Lease:
        page_tokens = self._groups[0].cache.page_tokens
        hits: list[Hit] = []
        while match.tokens:
            matches = match.matches if isinstance(match, GroupMatch) else (match,)
            hits.append(Hit(match.tokens // page_tokens, matches))
            if isinstance(match, Match) or len(hits) >= self._most:
                break
            match = self._client.find_groups(match.groups, match.tokens - page_tokens)
        return _Lease(time.monotonic() + self._settings.lease, hashes, hits)

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
        hit = Hit(chosen.pages, tuple(map(self._client.adopt, chosen.matches)))
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

    def _request(self, match: Match | GroupMatch) -> PendingPrefetch | None:
        if self._prefetch is None:
            return None
        return self._prefetch.submit(_grouped(match), self._settings.disk_timeout)


def _kind(group: EngineGroup, pools: Mapping[str, Any]) -> Group:
    """Returns what a hit needs of a group. Of a window SGLang loads whole pages, so their number determines it."""
    page_tokens = group.cache.page_tokens
    if group.name == FULL:
        return FullAttention(page_tokens)
    if group.name == WINDOW:
        return SlidingWindow(page_tokens, window=len(pools[WINDOW].keys) * page_tokens + 1)
    return Recurrent(page_tokens)


def _grouped(match: Match | GroupMatch) -> GroupMatch:
    if isinstance(match, GroupMatch):
        return match
    assert match.keys is not None  # only a match of another process has none
    asked = GroupKeys(FullAttention(match.page_tokens), match.keys)
    return GroupMatch((asked,), match.tokens, match.available_tokens, match.asked * match.page_tokens, (match,))
