"""Moves of bytes by a CUDA device's copy engines: in batches, or one by one."""

from __future__ import annotations

from typing import Final

from .driver import Driver
from .ways import Memcpy, Moves, Queue

# Batches of some ten thousand moves were seen to hang drivers of 2026, and a call's own time is small beside 4096.
_AT_ONCE: Final = 4096


class Batched:
    """In as few calls as there can be. Host memory is registered."""

    def __init__(self, driver: Driver, at_once: int = _AT_ONCE) -> None:
        """driver: one that batches."""
        self._driver, self._at_once = driver, at_once

    def __call__(self, moves: Moves, queue: Queue) -> None:
        """See Memcpy."""
        for first in range(0, len(moves.nbytes), self._at_once):
            some = slice(first, first + self._at_once)
            self._driver.copy_batch(moves.targets[some], moves.sources[some], moves.nbytes[some], queue.handle)


class OneByOne:
    """A call for each. Where host memory is not registered, the caller waits meanwhile."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __call__(self, moves: Moves, queue: Queue) -> None:
        """See Memcpy."""
        for target, source, nbytes in zip(
            moves.targets.tolist(), moves.sources.tolist(), moves.nbytes.tolist(), strict=True
        ):
            self._driver.copy(target, source, nbytes, queue.handle)


def memcpy_of(driver: Driver) -> Memcpy:
    """The best for registered memory."""
    return Batched(driver) if driver.batches else OneByOne(driver)
