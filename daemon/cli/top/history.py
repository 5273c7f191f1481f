"""The snapshots of the last minutes in `pagetier top`: rates and ratios from counters that only rise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise

import msgspec

from pagetier.daemon.stats.snapshot import ClientStats, Snapshot

_SPAN_S = 300.0


class Moment(msgspec.Struct, frozen=True):
    """A snapshot and its time, in seconds of a monotonic clock."""

    at: float
    snapshot: Snapshot


class _Lookups(msgspec.Struct, frozen=True):
    """Tokens that were lookups up in some time, and those of them that were found in any tier."""

    hits: int = 0
    tokens: int = 0

    def __add__(self, other: _Lookups) -> _Lookups:
        return _Lookups(self.hits + other.hits, self.tokens + other.tokens)

    @property
    def ratio(self) -> float | None:
        return self.hits / self.tokens if self.tokens else None


class History:
    """Snapshots of the last minutes, oldest first. Starts over when the segments are replaced."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque()

    def add(self, moment: Moment) -> None:
        """Adds the newest snapshot, and drops those that are too old."""
        if self._moments and not _is_continuation(self._moments[-1].snapshot, moment.snapshot):
            self._moments.clear()
        self._moments.append(moment)
        while moment.at - self._moments[0].at > _SPAN_S:
            self._moments.popleft()

    @property
    def now(self) -> Snapshot:
        """The newest snapshot."""
        return self._moments[-1].snapshot

    @property
    def seconds(self) -> float:
        """The time between the oldest and the newest snapshot."""
        return self._moments[-1].at - self._moments[0].at

    def rate(self, number: Callable[[Snapshot], int]) -> float:
        """Returns how fast a counter rose since the last snapshot, per second; 0 if there is only one."""
        if len(self._moments) < 2:
            return 0.0
        before, after = self._moments[-2], self._moments[-1]
        seconds = max(after.at - before.at, 1e-9)
        return max(0, number(after.snapshot) - number(before.snapshot)) / seconds

    def rate_of(self, client: ClientStats, number: Callable[[ClientStats], int]) -> float:
        """Returns the same for one client's counter; 0 if the client is new."""

        def of(snapshot: Snapshot) -> int:
            same = (other for other in snapshot.clients if (other.slot, other.pid) == (client.slot, client.pid))
            return next(map(number, same), number(client))

        return self.rate(of)

    def ratio(self) -> float | None:
        """Returns the share of tokens lookups up that was found in some tier; None without lookups."""
        return sum(self._between(), _Lookups()).ratio

    def ratio_now(self) -> float | None:
        """Returns the same for the time between the last two snapshots."""
        return next(iter(self._between()[-1:]), _Lookups()).ratio

    def ratios(self, columns: int) -> list[float | None]:
        """Returns the same for each of `columns` intervals, oldest first.

        The intervals begin at fixed times, so that the columns do not flicker.
        """
        width = _SPAN_S / columns
        newest = int(self._moments[-1].at / width)
        pieces = [_Lookups()] * columns
        for moment, lookups in zip(list(self._moments)[1:], self._between(), strict=True):
            column = columns - 1 - (newest - int(moment.at / width))
            if column >= 0:
                pieces[column] += lookups
        return [piece.ratio for piece in pieces]

    def _between(self) -> list[_Lookups]:
        return [_lookups_between(before.snapshot, after.snapshot) for before, after in pairwise(self._moments)]


def _is_continuation(before: Snapshot, after: Snapshot) -> bool:
    return before.daemon.segments == after.daemon.segments and before.tiers.memory.hits <= after.tiers.memory.hits


def _lookups_between(before: Snapshot, after: Snapshot) -> _Lookups:
    new, old = after.lookups, before.lookups
    found = new.found_tokens - old.found_tokens
    return _Lookups(max(0, found), max(0, found) + max(0, new.missed_tokens - old.missed_tokens))
