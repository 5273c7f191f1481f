"""Counts the tokens of a lookup by the tier that had them, once they have been read or have not come."""

from __future__ import annotations

import msgspec

from pagetier.client.client import Client
from pagetier.client.engines.fleet_reads import FleetRead
from pagetier.client.engines.prefetch_thread import PendingPrefetch
from pagetier.client.group_match import GroupMatch, Lookup


class BegunReads(msgspec.Struct, eq=False):
    """The pages that are read for a request because its first lookup did not find them in memory.

    Attributes:
        disk: Reads pages from disk; None if none are read.
        fleet: Asks the fleet and reads from it; None if it is not asked.
    """

    disk: PendingPrefetch | None = None
    fleet: FleetRead | None = None

    def __bool__(self) -> bool:
        return self.disk is not None or self.fleet is not None

    @property
    def ended(self) -> bool:
        """Whether nothing is read any more."""
        return (self.disk is None or self.disk.ready) and (self.fleet is None or self.fleet.ended)


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
        client.sample_lookup(match)

    def found(self, tokens: int) -> None:
        """Counts the lookup if nothing is read for it any more, since a later one has found so many tokens."""
        if self._reads.ended:
            self.end(tokens)

    def end(self, tokens: int) -> None:
        """Counts the lookup, unless it was counted before: so many tokens are or were in memory."""
        if not self._counted:
            self._counted = True
            self._client.count_lookup(self._by_tier(tokens))

    def _by_tier(self, tokens: int) -> Lookup:
        """Returns the tokens by tier. Those that no tier of this host had came from the fleet, if it was read from."""
        from_fleet = self._reads.fleet is not None and self._reads.fleet.hit is not None
        memory = min(tokens, self._memory)
        on_host = min(tokens, self._on_host) if from_fleet else tokens
        return msgspec.structs.replace(
            self._lookup,
            memory_tokens=memory,
            disk_tokens=on_host - memory,
            remote_tokens=tokens - on_host,
            missed_tokens=max(0, self._lookup.asked_tokens - tokens),
        )
