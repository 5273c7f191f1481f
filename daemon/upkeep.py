"""What the daemon looks after about once a second, beside its requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_EVERY_S: Final = 1.0


class Upkeep:
    """Steps that are due once a second. On the loop's thread only."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        self._steps = list(steps)
        self._due = 0.0

    def add(self, step: Callable[[], None]) -> None:
        """Adds a step."""
        self._steps.append(step)

    def run_when_due(self) -> None:
        """Runs all steps if a second has passed. To be called more often than that."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _EVERY_S
        for step in self._steps:
            step()
