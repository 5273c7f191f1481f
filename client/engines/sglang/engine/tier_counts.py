"""Counts the tokens of a lookup by the tier that had them."""

from __future__ import annotations

import msgspec

from pagetier.client.client import Client
from pagetier.client.engines.fleet_reads import FleetRead
from pagetier.client.engines.prefetch_thread import PendingPrefetch
from pagetier.client.group_match import GroupMatch, Lookup
from pagetier.client.session_lookups import count_lookup, sample_lookup


class BegunReads(msgspec.Struct, eq=False):
    """The pages that are read for a request because its first lookup did not find them in memory.

    Attributes:
        disk: Reads pages from disk; None if none are read.
        fleet: Asks the fleet and reads from it; None if it is not asked.
        judged: Whether it was decided what becomes of the pages on disk.
        slower_on_disk: Their tokens, if they are not loaded because computing them is faster.
    """

    disk: PendingPrefetch | None = None
    fleet: FleetRead | None = None
    judged: bool = False
    slower_on_disk: int = 0

    def __bool__(self) -> bool:
        return self.disk is not None or self.fleet is not None

    @property
    def ended(self) -> bool:
        """Whether nothing is read any more."""
        return (self.disk is None or self.disk.ready) and (self.fleet is None or self.fleet.ended)

    @property
    def slower_in_fleet(self) -> int:
        """The tokens that only the fleet has and that are not loaded, because computing them is faster."""
        return self.fleet.slower_tokens if self.fleet is not None else 0


class UncountedLookup:
    """The first lookup of a request, until its tokens are counted.

    Args:
        client: Counts.
        match: What the lookup has found. It may be released.
        reads: What is read for it.
    """

    def __init__(self, client: Client, match: GroupMatch, reads: BegunReads) -> None:
        self._client, self._lookup, self._reads = client, match.lookup, reads
        self._memory, self._on_host = match.tokens, match.available_tokens
        self._counted = False
        sample_lookup(client.session, match)

    def found(self, tokens: int) -> None:
        """Counts the lookup if nothing is read for it any more, since a later one has found so many tokens."""
        if self._reads.ended:
            self.end(tokens)

    def end(self, tokens: int) -> None:
        """Counts the lookup, unless it was counted before: so many tokens are or were in memory."""
        if not self._counted:
            self._counted = True
            on_host = self._on_host if self._from_fleet else tokens
            counts = by_tier(self._lookup, self._memory, on_host, tokens)
            disk = min(counts.missed_tokens, self._reads.slower_on_disk)
            fleet = min(counts.missed_tokens - disk, self._reads.slower_in_fleet)
            slower = msgspec.structs.replace(counts, disk_slower_tokens=disk, remote_slower_tokens=fleet)
            count_lookup(self._client.session, slower)

    @property
    def _from_fleet(self) -> bool:
        """Whether the fleet was read from: the tokens that no tier of this host had came from it."""
        return self._reads.fleet is not None and self._reads.fleet.hit is not None


def by_tier(lookup: Lookup, memory: int, on_host: int, tokens: int) -> Lookup:
    """Returns the counts of a lookup that gets so many tokens.

    Args:
        lookup: The counts of what was asked for.
        memory: The tokens that memory had.
        on_host: The tokens that memory and disk had. Those after them are of the fleet.
        tokens: The tokens of the hit.
    """
    in_memory, here = min(tokens, memory), min(tokens, on_host)
    return msgspec.structs.replace(
        lookup,
        memory_tokens=in_memory,
        disk_tokens=here - in_memory,
        remote_tokens=tokens - here,
        missed_tokens=max(0, lookup.asked_tokens - tokens),
    )
