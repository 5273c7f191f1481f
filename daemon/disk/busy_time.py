"""For how long the disk has been at work."""

from __future__ import annotations

import time
from collections.abc import Callable


class Busy:
    """A clock that runs while there are orders that were not answered."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._before = 0.0

    def note(self, orders: int) -> None:
        """So many are open now."""
        if orders and self._since is None:
            self._since = self._clock()
        elif not orders:
            self._before, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """So far."""
        return self._before + (self._clock() - self._since if self._since is not None else 0.0)
