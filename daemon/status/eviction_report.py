"""Which page leaves memory first: what the daemon reports of its eviction policy."""

from __future__ import annotations

from enum import Enum

import msgspec


class EvictionState(Enum):
    """Which order is in force, and why."""

    LRU = "lru"
    """evict.policy is lru."""
    LEARNING = "learning"
    """The least recently used page leaves until the policy has learned."""
    CHOOSING = "choosing"
    """The policy has learned and chooses."""
    FOLLOWING_LRU = "following lru"
    """The least recently used page leaves for now, since that would hit more."""
    NO_MEMORY = "no memory"
    """The least recently used page leaves, because the daemon has too little memory to learn."""


_TEXTS = {
    EvictionState.LRU: "the least recently used pages are evicted",
    EvictionState.LEARNING: (
        "the least recently used pages are evicted until it has learned from stores that name the page before them"
    ),
    EvictionState.CHOOSING: "the pages that are expected to return last are evicted",
    EvictionState.FOLLOWING_LRU: "the least recently used pages are evicted for now, because that hits more",
    EvictionState.NO_MEMORY: "the least recently used pages are evicted, because memory is too short to learn",
}


class EvictionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The order of eviction. The counters begin with the daemon.

    Attributes:
        policy: The configured policy, evict.policy.
        state: Which order is in force, and why.
        left_out: Pages that were not stored, because those in memory are expected to be used sooner.
        switches: Changes between the learned order and that of LRU.
    """

    policy: str = "lru"
    state: EvictionState = EvictionState.LRU
    left_out: int = 0
    switches: int = 0

    @property
    def sentence(self) -> str:
        """The order in force, and why."""
        return f"evict.policy = {self.policy}: {_TEXTS[self.state]}"

    @property
    def is_worth_a_line(self) -> bool:
        """Whether an order other than that of LRU is or was in force."""
        return self.policy != "lru" or bool(self.left_out or self.switches)

    @property
    def text(self) -> str:
        """The order in force with the counters."""
        return f"{self.sentence}; {self.left_out:,} pages left out, {self.switches:,} changes of the order"
