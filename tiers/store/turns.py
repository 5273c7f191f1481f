"""Reads go before writes: who writes gives way between frames, for a bounded while."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final

PATIENCE_S: Final = 0.1  # in each transaction: writing goes on under reads that never end


class Turns:
    """Counts who reads."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._readers = 0

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Writers pause meanwhile."""
        with self._change:
            self._readers += 1
        try:
            yield
        finally:
            with self._change:
                self._readers -= 1
                if not self._readers:
                    self._change.notify_all()

    def wait(self, seconds: float) -> float:
        """Waits until nobody reads, but not longer. How long it took."""
        if not self._readers:  # without the lock: a reader seen one frame late does no harm
            return 0.0
        began = time.monotonic()
        with self._change:
            self._change.wait_for(lambda: not self._readers, seconds)
        return time.monotonic() - began


class Patience:
    """What one transaction may wait in all."""

    def __init__(self, turns: Turns, seconds: float = PATIENCE_S) -> None:
        self._turns = turns
        self._left = seconds

    def give_way(self) -> None:
        """Lets reads go first, while patience lasts."""
        if self._left > 0:
            self._left -= self._turns.wait(self._left)
