"""Gives reads priority over writes: a writer pauses between frames, for a bounded time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from pagetier.shm import clock
from pagetier.shm.safe_event import SafeCondition

PATIENCE_S: Final = 0.1  # in each transaction: writing continues under endless reads


class ReaderCount:
    """The number of reads that run, for writers that pause until there is none. Thread-safe."""

    def __init__(self) -> None:
        self._change = SafeCondition()
        self._readers = 0

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Makes writers pause inside the block."""
        with self._change.lock:
            self._readers += 1
        try:
            yield
        finally:
            with self._change.lock:
                self._readers -= 1
                if not self._readers:
                    self._change.wake_all()

    def wait(self, seconds: float) -> float:
        """Waits until there is no reader, at most `seconds`. Returns how long it took."""
        if not self._readers:  # without the lock: noticing a reader one frame late is harmless
            return 0.0
        began = clock.now()
        with self._change.lock:
            self._change.wait_for(lambda: not self._readers, seconds)
        return clock.now() - began


class Patience:
    """The time that one transaction may wait in all."""

    def __init__(self, readers: ReaderCount, seconds: float = PATIENCE_S) -> None:
        self._count = readers
        self._left = seconds

    def give_way(self) -> None:
        """Lets reads go first, as long as time is left."""
        if self._left > 0:
            self._left -= self._count.wait(self._left)
