"""Copies bytes with a CUDA device's copy engines, in batches or one by one."""

from __future__ import annotations

from typing import Final

from pagetier.kernels.gpu.copy_paths import Memcpy, Moves, Queue
from pagetier.kernels.gpu.cuda_driver import Driver

# Batches of some ten thousand moves hung drivers of 2026; beside 4096 moves the cost of a call is small.
_AT_ONCE: Final = 4096


class Batched:
    """Copies in as few calls as possible. The host memory must be registered."""

    def __init__(self, driver: Driver, at_once: int = _AT_ONCE) -> None:
        """Takes a driver that supports batches."""
        self._driver, self._at_once = driver, at_once

    def __call__(self, moves: Moves, queue: Queue) -> None:
        """Implements Memcpy."""
        for first in range(0, len(moves.nbytes), self._at_once):
            some = slice(first, first + self._at_once)
            self._driver.copy_batch(moves.targets[some], moves.sources[some], moves.nbytes[some], queue.handle)


class OneByOne:
    """Copies with one call a move. Blocks the caller where the host memory is not registered."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __call__(self, moves: Moves, queue: Queue) -> None:
        """Implements Memcpy."""
        for target, source, nbytes in zip(
            moves.targets.tolist(), moves.sources.tolist(), moves.nbytes.tolist(), strict=True
        ):
            self._driver.copy(target, source, nbytes, queue.handle)


def memcpy_of(driver: Driver) -> Memcpy:
    """Returns the fastest implementation for registered memory."""
    return Batched(driver) if driver.batches else OneByOne(driver)
