"""Counts hits, stored pages and failed loads for vLLM's own metrics."""

from __future__ import annotations

from collections import Counter
from typing import Final

HELP: Final = {
    "memory_tokens": "Prompt tokens loaded from pagetier's memory.",
    "disk_tokens": "Prompt tokens loaded from pagetier's disk.",
    "stored_pages": "Pages, or parts of pages, stored in pagetier.",
    "wrong_hints": "Requests whose hints were wrong and therefore ignored.",
    "unstored_pages": 'Pages that left the GPU before they could be stored, with "store": "on_eviction".',
    "failed_loads": "Requests that were recomputed because their pages could not be loaded.",
}


class ConnectorCounters:
    """Counters by name since the last report; HELP lists them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def hit(self, tokens: int, from_memory: int) -> None:
        """Counts `tokens` loaded tokens, `from_memory` of them without the disk."""
        self._counts["memory_tokens"] += from_memory
        self._counts["disk_tokens"] += tokens - from_memory

    def add(self, name: str, count: int) -> None:
        """Adds `count` to another counter."""
        self._counts[name] += count

    def taken(self) -> dict[str, int]:
        """Returns the counts that are not 0, and resets them."""
        counts, self._counts = self._counts, Counter()
        return {name: count for name, count in counts.items() if count}
