"""Faults of one rank: a full GPU, pages that are gone, ranks that do not agree."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

from eventually import PATIENCE_S
from sglang_model import AnyPrompt, Spec
from sglang_pools import Pools
from sglang_requests import key_of


class Faults:
    """The methods of a rank that cause faults."""

    spec: Spec
    rank: int
    cache: Any
    linker: Any
    pools: Pools
    params: Any
    locks: list[Any]

    def served(self) -> tuple[Any, dict[str, Any]]:
        """Returns pagetier's client, and its groups by the name of their pool."""
        transfers = self.linker.cache_linker.transfers
        return transfers._client, {group.name: group for group in transfers._ready().groups}

    def drop(self, pool: str) -> bool:
        """Drops the stored pages of one pool from memory and disk, and returns whether none is left."""
        client, groups = self.served()
        return bool(client.flush(groups[pool].cache.namespace, PATIENCE_S))

    def drop_of(self, rank: int, pool: str) -> bool:
        """Drops the stored pages that one rank has of a pool, and returns whether this one did so."""
        return self.rank == rank and self.drop(pool)

    def lock(self, number: AnyPrompt, pages: int) -> None:
        """Keeps a prompt on the GPU until unlock(), as a running request does."""
        found = self.cache.match_prefix(MatchPrefixParams(key=key_of(number, pages * self.spec.page)))
        self.locks.append(self.cache.lock(found.last_device_node))

    def unlock(self) -> None:
        """Ends the locks of all prompts."""
        while self.locks:
            self.cache.unlock(self.locks.pop())

    def leave(self, rank: int) -> None:
        """Makes one rank leave the daemon, with which its pins end."""
        if self.rank == rank:
            self.linker.cache_linker.transfers._client.close()

    def mutate(self, mutant: str) -> None:
        """Breaks the agreement of the ranks."""
        transfers = self.linker.cache_linker.transfers
        match mutant:
            case "each rank answers for itself":
                transfers._ranks = SimpleNamespace(agree=lambda *, here: here)
            case "each rank returns its longest prefix only":
                transfers._ready().lookups._most = 1

    def find_at_most(self, rank: int, pages: int) -> None:
        """Makes the lookups of one rank end after some pages."""
        linker = self.linker.cache_linker
        lookup = linker.lookup
        if self.rank == rank:
            linker.lookup = lambda *asked: [length for length in lookup(*asked) if length <= pages]
