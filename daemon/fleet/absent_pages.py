"""Remembers for a short time which pages the fleet did not have, so that a burst of requests asks once."""

from __future__ import annotations

from typing import Final

from pagetier.shm.page_rows import PAGE_KEYS

ABSENT_S: Final = 1.0
UNREADABLE_S: Final = 10.0  # a store may claim for this long that it has a page that it cannot return
_MOST: Final = 1 << 16


class AbsentPages:
    """A bounded set of keys that expire. Times are those of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def add(self, keys: bytes, now: float, seconds: float) -> None:
        """Adds keys, KEY_BYTES each, for some seconds. Expired ones leave; if there are too many, so do the oldest."""
        self._expire(now)
        until = now + seconds
        for key in PAGE_KEYS.split(keys):
            self._until.pop(key, None)
            self._until[key] = until
        while len(self._until) > _MOST:
            del self._until[next(iter(self._until))]

    def _expire(self, now: float) -> None:
        """Forgets the oldest keys, up to the first one that has not expired."""
        while self._until and self._until[oldest := next(iter(self._until))] <= now:
            del self._until[oldest]

    def has(self, key: bytes, now: float) -> bool:
        """Returns whether a key is known to be absent now."""
        until = self._until.get(key)
        if until is not None and until <= now:
            del self._until[key]
        return until is not None and until > now

    def __len__(self) -> int:
        return len(self._until)
