"""Limits on copying: a backlog that is bounded in seconds of work, and a cap on the bandwidth."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_ASSUMED: Final = 2.0 * 2**30  # bytes per second until something was measured: the speed of a slow host
_WEIGHT_S: Final = 0.05  # the weight of past measurements, in seconds of copying


class Rate:
    """The speed of a busy stream in bytes per second, from its latest copies.

    Attributes:
        value: Bytes per second; an assumption until something was measured.
    """

    def __init__(self) -> None:
        self.value = _ASSUMED

    def record(self, nbytes: int, seconds: float) -> None:
        """Adds a measurement of `nbytes` in `seconds`. The longer it took, the less past measurements count."""
        self.value = (self.value * _WEIGHT_S + nbytes) / (_WEIGHT_S + max(seconds, 0.0))


class CopyBacklog:
    """Bytes that were accepted and are not copied yet, limited to some seconds of work at the measured rate.

    `cap` is the limit on the speed of the stream in bytes per second, 0 for none.

    Attributes:
        queued: The number of bytes in the backlog.
    """

    def __init__(self, seconds: float, rate: Rate, cap: int) -> None:
        self._seconds, self._rate, self._cap = seconds, rate, cap
        self.queued = 0

    def accept(self, sizes: npt.NDArray[np.int64]) -> int:
        """Returns how many pages of these sizes, from the first on, the backlog has room for.

        They count as queued from now on. An empty backlog accepts one page of any size, since a rate that was measured
        too low could otherwise never be corrected.
        """
        rate = min(self._rate.value, self._cap or np.inf)
        free = self._seconds * rate - self.queued
        ends = sizes.cumsum()
        count = int(ends.searchsorted(free, side="right"))
        if not count and not self.queued:
            count = min(1, len(sizes))
        self.queued += int(ends[count - 1]) if count else 0
        return count

    def release(self, nbytes: int) -> None:
        """Removes bytes that are no longer queued."""
        self.queued -= nbytes


class BandwidthCap:
    """A cap in bytes per second: in any time span, at most cap * time and one piece begin. 0 for no cap."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._next = -np.inf

    def delay(self, now: float) -> float:
        """Returns the seconds until the next piece may begin."""
        return max(0.0, float(self._next - now))

    def spend(self, nbytes: int, now: float) -> None:
        """Records that a piece of `nbytes` begins."""
        if self._cap:
            self._next = max(self._next, now) + nbytes / self._cap
