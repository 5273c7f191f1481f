"""Runs actions at random moments, independently of each other."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec


class ScheduledAction(msgspec.Struct):
    """An action and the mean interval between its calls. `due` is CLOCK_MONOTONIC in seconds."""

    act: Callable[[], None]
    mean: float
    due: float = 0.0


class Schedule:
    """Actions that run at random moments. `now` is CLOCK_MONOTONIC in seconds."""

    def __init__(self, rng: random.Random, now: float) -> None:
        self._rng = rng
        self._now = now
        self._schedule: list[ScheduledAction] = []

    def add(self, act: Callable[[], None], mean: float, after: float = 0.0) -> None:
        """Adds an action with a mean interval in seconds, never if that is 0; it starts `after` seconds later."""
        if mean:
            self._schedule.append(ScheduledAction(act, mean, self._now + after + self._rng.expovariate(1 / mean)))

    def run_due(self, now: float) -> None:
        """Runs all actions that are due, as often as they are due."""
        for action in self._schedule:
            while action.due <= now:
                action.act()
                action.due += self._rng.expovariate(1 / action.mean)
