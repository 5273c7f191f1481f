"""The tokens of the last hour by the tier that gave them, and the bytes written to disk, minute by minute."""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from pagetier.daemon.common import loop_clock
from pagetier.daemon.stats.snapshot_reader import read_status
from pagetier.shm import clock
from pagetier.shm._core import Observer

MINUTES: Final = 60
_MINUTE_S: Final = 60.0
_SAMPLE_S: Final = 15.0


class Totals(NamedTuple):
    """Counters that only rise: tokens by the tier that gave them, and bytes handed to file systems by this daemon."""

    memory: int = 0
    disk: int = 0
    fleet: int = 0
    missed: int = 0
    written: int = 0

    @property
    def tokens(self) -> int:
        """All tokens that were looked up."""
        return self.memory + self.disk + self.fleet + self.missed


class TokenHistory:
    """How much the totals rose in each of the last 60 minutes; it begins when it is made. On the loop's thread.

    Attributes:
        began: When it began, in seconds since 1970.
    """

    def __init__(self, totals: Totals) -> None:
        self.began = clock.date()
        self._began = loop_clock.now()
        self._last = totals
        self._minute = 0
        self._rises = array("Q", bytes(8 * MINUTES * len(totals)))

    def add(self, totals: Totals) -> None:
        """Counts what the totals rose by since the last call as of the present minute."""
        minute = int(self.seconds / _MINUTE_S)
        for passed in range(max(self._minute, minute - MINUTES) + 1, minute + 1):
            self._set(passed, Totals())
        self._minute = minute
        before = self._get(minute)
        rises = (old + max(0, new - last) for old, new, last in zip(before, totals, self._last, strict=True))
        self._set(minute, Totals(*rises))
        self._last = totals

    @property
    def seconds(self) -> float:
        """The time since it began."""
        return loop_clock.now() - self._began

    def minutes(self) -> list[Totals]:
        """Returns the rise of each minute, oldest first; the last one is not over. Fewer than 60 in the first hour."""
        return [self._get(minute) for minute in range(max(0, self._minute - MINUTES + 1), self._minute + 1)]

    def hour(self) -> Totals:
        """Returns the rise of all these minutes."""
        return Totals(*map(sum, zip(*self.minutes(), strict=True)))

    def written_per_day(self) -> float | None:
        """Returns the bytes written a day at the rate of the last hour; None in the first minute."""
        seconds = min(self.seconds, MINUTES * _MINUTE_S)
        return self.hour().written / seconds * 86_400 if seconds >= _MINUTE_S else None

    def _get(self, minute: int) -> Totals:
        start = minute % MINUTES * len(self._last)
        return Totals(*self._rises[start : start + len(self._last)])

    def _set(self, minute: int, rise: Totals) -> None:
        start = minute % MINUTES * len(rise)
        self._rises[start : start + len(rise)] = array("Q", rise)


def read_totals(observer: Observer) -> Totals:
    """Returns the counters now."""
    counts = observer.counts()
    tokens = counts.memory_tokens, counts.disk_tokens, counts.remote_tokens, counts.missed_tokens
    return Totals(*tokens, read_status(observer).disk.device_bytes)


async def keep_history(history: TokenHistory, observer: Observer) -> None:
    """Adds the counters every 15 seconds, without an end."""
    while True:
        await loop_clock.pause(_SAMPLE_S)
        history.add(read_totals(observer))
