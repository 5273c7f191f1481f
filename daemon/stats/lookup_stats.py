"""What requests have found in each tier, and what engines computed although a tier had it."""

from __future__ import annotations

from typing import Final

import msgspec

_PLACES: Final = ("in memory", "on disk", "in the fleet")


class LookupStats(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were looked up, and the tokens of the full pages of their prompts by the tier that provided them.

    A request is one lookup, however often it is matched, and each of its tokens is counted once. Tokens that an engine
    had in its own cache are not looked up.

    Attributes:
        memory_tokens: Tokens of pages that were found in memory.
        disk_tokens: Tokens of pages that were only on disk, and were loaded. vLLM counts all tokens that it loads from
            the first page on disk on.
        remote_tokens: Tokens of pages that were only in the fleet, and were loaded by an engine's connector.
        missed_tokens: All other tokens, including those on disk that were not read in time or not waited for.
        memory_slower_tokens: Those of them that are in memory, and that an engine has computed because that is faster.
        disk_slower_tokens: The same of those that are only on disk.
        remote_slower_tokens: The same of those that are only in the fleet.
    """

    lookups: int
    memory_tokens: int
    disk_tokens: int
    missed_tokens: int
    remote_tokens: int = 0
    memory_slower_tokens: int = 0
    disk_slower_tokens: int = 0
    remote_slower_tokens: int = 0

    @property
    def disk_hit_ratio(self) -> float | None:
        """Tokens from disk per token that memory did not have; None before the first one."""
        asked = self.disk_tokens + self.remote_tokens + self.missed_tokens
        return self.disk_tokens / asked if asked else None

    @property
    def found_tokens(self) -> int:
        """Tokens from all tiers."""
        return self.memory_tokens + self.disk_tokens + self.remote_tokens

    @property
    def slower_tokens(self) -> int:
        """Tokens that engines computed although a tier had them, because that is faster."""
        return self.memory_slower_tokens + self.disk_slower_tokens + self.remote_slower_tokens

    @property
    def text(self) -> str:
        """The share that was found of the tokens that engines lacked, by tier; "no lookups" before the first one."""
        total = self.found_tokens + self.missed_tokens
        if not total:
            return "no lookups"
        tiers = zip(_PLACES, (self.memory_tokens, self.disk_tokens, self.remote_tokens), strict=True)
        beyond = self.disk_tokens + self.remote_tokens
        shares = ", ".join(f"{tokens / total:.1%} {where}" for where, tokens in tiers if tokens and beyond)
        found = f"{self.found_tokens / total:.1%} of the tokens that engines lacked were found"
        return (f"{found} ({shares})" if shares else found) + self._slower_text(total)

    def _slower_text(self, total: int) -> str:
        if not self.slower_tokens:
            return ""
        slower = (self.memory_slower_tokens, self.disk_slower_tokens, self.remote_slower_tokens)
        shares = (f"{tokens / total:.1%} {where}" for where, tokens in zip(_PLACES, slower, strict=True) if tokens)
        return f", computed because loading is slower: {', '.join(shares)}"
