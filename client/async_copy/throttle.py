"""How much copying is let happen: a backlog that is bounded in seconds of work, and a cap on the bandwidth."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_ASSUMED: Final = 2.0 * 2**30  # bytes a second, before anything was measured: what a slow host does
_WEIGHT_S: Final = 0.05  # how long the past counts beside what was measured last


class Rate:
    """Bytes a second of a stream that is at work, by what it did lately.

    value: an assumption until something was measured.
    """

    def __init__(self) -> None:
        self.value = _ASSUMED

    def note(self, nbytes: int, seconds: float) -> None:
        """So many bytes took so long. The longer, the less the past counts."""
        self.value = (self.value * _WEIGHT_S + nbytes) / (_WEIGHT_S + max(seconds, 0.0))


class CopyBacklog:
    """Bytes that were let in and are not copied yet: no more than some seconds of work at the measured rate.

    cap: bytes a second that the stream will do at most; 0: as many as it can.
    """

    def __init__(self, seconds: float, rate: Rate, cap: int) -> None:
        self._seconds, self._rate, self._cap = seconds, rate, cap
        self.queued = 0

    def admit(self, sizes: npt.NDArray[np.int64]) -> int:
        """How many pages of these sizes are let in, from the first on; they count as queued from now on.

        Where nothing is queued, one is let in whatever its size: else a rate that was measured too low would stay.
        """
        rate = min(self._rate.value, self._cap or np.inf)
        room = self._seconds * rate - self.queued
        count = int(np.searchsorted(np.cumsum(sizes), room, side="right"))
        if not count and not self.queued:
            count = min(1, len(sizes))
        self.queued += int(sizes[:count].sum())
        return count

    def leave(self, nbytes: int) -> None:
        """So many bytes are not queued any more."""
        self.queued -= nbytes


class BandwidthCap:
    """A cap on bytes a second: in any time no more than cap * time and one piece begin. 0: no cap."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._next = -np.inf

    def delay(self, now: float) -> float:
        """Seconds until the next piece may begin."""
        return max(0.0, float(self._next - now))

    def spend(self, nbytes: int, now: float) -> None:
        """A piece of so many bytes begins."""
        if self._cap:
            self._next = max(self._next, now) + nbytes / self._cap
