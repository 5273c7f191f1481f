"""Measures how fast a store takes or brings bytes while it has something to do."""

from __future__ import annotations

from typing import Final

_HALF_LIFE_S: Final = 1.0  # of busy time


class BusyRate:
    """A moving mean of bytes over busy time. Times are those of one monotonic clock, in seconds.

    Busy time is time in which at least one page was on its way: idle time says nothing, and pages that move in parallel
    share it. Time after which nothing came does not count, since a store that hangs has no rate.
    """

    def __init__(self) -> None:
        self._nbytes = self._seconds = 0.0
        self._pages = 0
        self._since = 0.0

    @property
    def rate(self) -> float:
        """Bytes per second, 0 before anything has moved."""
        return self._nbytes / self._seconds if self._seconds else 0.0

    def began(self, pages: int, now: float) -> None:
        """Takes note that some pages are on their way."""
        if not self._pages:
            self._since = now
        self._pages += pages

    def ended(self, pages: int, nbytes: int, now: float) -> None:
        """Takes note of the end of some of them, which moved this many bytes."""
        self._pages -= pages
        if nbytes:
            busy = max(1e-6, now - self._since)
            kept = 0.5 ** (busy / _HALF_LIFE_S)
            self._nbytes, self._seconds = kept * self._nbytes + nbytes, kept * self._seconds + busy
            self._since = now

    def lost(self) -> None:
        """Forgets the pages on their way: nothing moves them any more."""
        self._pages = 0
