"""What is counted for vLLM's own metrics, between two looks at it."""

from __future__ import annotations

from collections import Counter
from typing import Final

HELP: Final = {
    "memory_tokens": "Prompt tokens whose state was loaded from pagetier's memory.",
    "disk_tokens": "Prompt tokens whose state was brought in from pagetier's disk.",
    "stored_pages": "Pages, or parts of pages, that were stored in pagetier.",
    "failed_loads": "Requests that are computed anew, as their pages could not be loaded.",
}


class ConnectorCounters:
    """Counts by name; see HELP."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def hit(self, tokens: int, from_memory: int) -> None:
        """A request has loaded so many tokens, `from_memory` of them without the disk."""
        self._counts["memory_tokens"] += from_memory
        self._counts["disk_tokens"] += tokens - from_memory

    def add(self, name: str, count: int) -> None:
        """Counts something else."""
        self._counts[name] += count

    def taken(self) -> dict[str, int]:
        """All that was counted since the last call."""
        counts, self._counts = self._counts, Counter()
        return {name: count for name, count in counts.items() if count}
