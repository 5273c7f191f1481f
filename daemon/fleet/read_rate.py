"""Measures how fast the fleet brings pages while it is reading, which says how many pages fit into a timeout."""

from __future__ import annotations

from array import array
from typing import Final

from pagetier.tiers.worker_protocol import HasRead, Read

_HALF_LIFE_S: Final = 1.0  # of busy time


class ReadRate:
    """A moving mean of bytes over busy time. Times are those of one monotonic clock, in seconds.

    Busy time is time in which at least one page was on its way: idle time says nothing, and pages that come in
    parallel share it. Time after which nothing came does not count, since a store that hangs has no rate.
    """

    def __init__(self) -> None:
        self._nbytes = self._seconds = 0.0
        self._pages = 0
        self._since = 0.0

    @property
    def rate(self) -> float:
        """Bytes per second, 0 before anything was read."""
        return self._nbytes / self._seconds if self._seconds else 0.0

    def asked(self, command: Read, now: float) -> None:
        """Takes note that the worker was asked to read pages."""
        if not self._pages:
            self._since = now
        self._pages += len(array("Q", command.serials))

    def came(self, report: HasRead, nbytes: int, now: float) -> None:
        """Takes note of the end of some reads, which brought this many bytes."""
        self._pages -= len(report.read)
        if nbytes:
            busy = max(1e-6, now - self._since)
            kept = 0.5 ** (busy / _HALF_LIFE_S)
            self._nbytes, self._seconds = kept * self._nbytes + nbytes, kept * self._seconds + busy
            self._since = now

    def lost(self) -> None:
        """Forgets the reads in progress: the worker is gone."""
        self._pages = 0
