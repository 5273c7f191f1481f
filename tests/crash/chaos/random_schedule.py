"""When something happens next: independent of each other, at random moments."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec


class Fate(msgspec.Struct):
    """Something that happens every `mean` seconds or so; never, where that is 0. due: CLOCK_MONOTONIC in seconds."""

    act: Callable[[], None]
    mean: float
    due: float = 0.0


class Fates:
    """A few of them. now: CLOCK_MONOTONIC in seconds."""

    def __init__(self, rng: random.Random, now: float) -> None:
        self._rng = rng
        self._now = now
        self._fates: list[Fate] = []

    def add(self, act: Callable[[], None], mean: float, after: float = 0.0) -> None:
        """From now on, or from `after` seconds later on."""
        if mean:
            self._fates.append(Fate(act, mean, self._now + after + self._rng.expovariate(1 / mean)))

    def pass_on(self, now: float) -> None:
        """All that is due happens, as often as it is due."""
        for fate in self._fates:
            while fate.due <= now:
                fate.act()
                fate.due += self._rng.expovariate(1 / fate.mean)
