"""Runs actions at random moments, independently of each other, by a clock that follows the work done."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import msgspec

_SLOWEST: Final = 0.25


class WorkClock:
    """A clock in seconds that is slow while little work is done, because the machine is busy with something else.

    `rate` is the number of steps that make a second; 0: the clock of the wall. It has at least a quarter of the speed
    of that clock, and at most the same.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._seen = now
        self._steps = 0
        self.now = now

    def advance(self, now: float, steps: int) -> float:
        """Returns the new time. `now` is CLOCK_MONOTONIC in seconds, `steps` the number of all steps until then."""
        passed = now - self._seen
        work = max(_SLOWEST * passed, min(passed, (steps - self._steps) / self._rate)) if self._rate else passed
        self.now, self._seen, self._steps = self.now + work, now, steps
        return self.now


class ScheduledAction(msgspec.Struct):
    """An action and the mean interval between its calls. `due` is a time of the schedule's clock."""

    act: Callable[[], None]
    mean: float
    due: float = 0.0


class Schedule:
    """Actions that run at random moments, by any clock in seconds."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._schedule: list[ScheduledAction] = []

    def add(self, act: Callable[[], None], mean: float, now: float) -> None:
        """Adds an action with a mean interval in seconds, never if that is 0."""
        if mean:
            self._schedule.append(ScheduledAction(act, mean, now + self._rng.expovariate(1 / mean)))

    def run_due(self, now: float) -> None:
        """Runs all actions that are due, as often as they are due."""
        for action in self._schedule:
            while action.due <= now:
                action.act()
                action.due += self._rng.expovariate(1 / action.mean)
