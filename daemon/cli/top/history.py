"""What `pagetier top` has seen of the last minutes: rates and ratios out of counters that only rise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise

import msgspec

from pagetier.daemon.cli.snapshot import ClientStats, Snapshot

MINUTES = 5
_SPAN_S = MINUTES * 60.0


class Moment(msgspec.Struct, frozen=True):
    """A look and its time, in seconds of a clock that never goes back."""

    at: float
    snapshot: Snapshot


class _Looked(msgspec.Struct, frozen=True):
    """Tokens that were looked for, and found in whatever tier, in some time."""

    hits: int = 0
    asked: int = 0

    def __add__(self, other: _Looked) -> _Looked:
        return _Looked(self.hits + other.hits, self.asked + other.asked)

    @property
    def ratio(self) -> float | None:
        return self.hits / self.asked if self.asked else None


class History:
    """Moments of the last minutes, oldest first. Begins anew where the segments are others."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque()

    def add(self, moment: Moment) -> None:
        """The newest; forgets what is too old."""
        if self._moments and not _goes_on(self._moments[-1].snapshot, moment.snapshot):
            self._moments.clear()
        self._moments.append(moment)
        while moment.at - self._moments[0].at > _SPAN_S:
            self._moments.popleft()

    @property
    def now(self) -> Snapshot:
        """The newest look."""
        return self._moments[-1].snapshot

    def rate(self, number: Callable[[Snapshot], int]) -> float:
        """How fast a counter rose lately, per second; 0 where there is but one look."""
        if len(self._moments) < 2:
            return 0.0
        before, after = self._moments[-2], self._moments[-1]
        seconds = max(after.at - before.at, 1e-9)
        return max(0, number(after.snapshot) - number(before.snapshot)) / seconds

    def rate_of(self, client: ClientStats, number: Callable[[ClientStats], int]) -> float:
        """The same of one client's counter; 0 where it was not there before."""

        def of(snapshot: Snapshot) -> int:
            same = (other for other in snapshot.clients if (other.slot, other.pid) == (client.slot, client.pid))
            return next(map(number, same), number(client))

        return self.rate(of)

    def ratio(self) -> float | None:
        """The share of tokens looked for that was found in some tier; None where nobody looked."""
        return sum(self._between(), _Looked()).ratio

    def ratio_now(self) -> float | None:
        """The same since the last look but one."""
        return next(iter(self._between()[-1:]), _Looked()).ratio

    def ratios(self, columns: int) -> list[float | None]:
        """The same piece by piece, the oldest first. Pieces begin at fixed times, so that they do not flicker."""
        width = _SPAN_S / columns
        newest = int(self._moments[-1].at / width)
        pieces = [_Looked()] * columns
        for moment, looked in zip(list(self._moments)[1:], self._between(), strict=True):
            column = columns - 1 - (newest - int(moment.at / width))
            if column >= 0:
                pieces[column] += looked
        return [piece.ratio for piece in pieces]

    def _between(self) -> list[_Looked]:
        return [_looked(before.snapshot, after.snapshot) for before, after in pairwise(self._moments)]


def _goes_on(before: Snapshot, after: Snapshot) -> bool:
    return before.daemon.segments == after.daemon.segments and before.tiers.memory.hits <= after.tiers.memory.hits


def _looked(before: Snapshot, after: Snapshot) -> _Looked:
    ours, theirs = after.lookups, before.lookups
    found = ours.memory_tokens + ours.disk_tokens - theirs.memory_tokens - theirs.disk_tokens
    return _Looked(max(0, found), max(0, found) + max(0, ours.missed_tokens - theirs.missed_tokens))
