"""Moves of runs of bytes by the copy engines: in batches or one by one, and never too many ahead of the GPU."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec

from pagetier.kernels.gpu.copy_paths import Memcpy, Moves, Queue
from pagetier.kernels.gpu.cuda_driver import Driver
from pagetier.shm import clock

# Batches of some ten thousand moves hung drivers of 2026; beside 4096 moves the cost of a call is small.
_AT_ONCE: Final = 4096
_AHEAD: Final = 8192  # moves that have not ended
_NAP: Final = 50e-6  # seconds between two looks at a mark


class Batched:
    """Copies in as few calls as possible. The host memory must be registered."""

    def __init__(self, driver: Driver, at_once: int = _AT_ONCE) -> None:
        """Takes a driver that supports batches."""
        self._driver, self._at_once = driver, at_once

    def __call__(self, moves: Moves, queue: Queue) -> None:
        """Implements Memcpy."""
        for some in moves.parts(self._at_once):
            self._driver.copy_batch(some.targets, some.sources, some.nbytes, queue.handle)


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


class _Part(msgspec.Struct, frozen=True, eq=False):
    """Moves that have not ended, as far as is known: how many, and the mark behind them."""

    count: int
    mark: Any


class Paced:
    """Keeps at most `ahead` moves of a stream waiting for the GPU, by waiting before more are enqueued.

    Moves may wait for an event of the engine that is late. A driver whose queue is full then blocks the thread that
    enqueues, and every launch of the engine too: 74,000 moves did so on an H200 until the event came. This waits
    outside of the driver.
    """

    def __init__(self, memcpy: Memcpy, at_once: int = _AT_ONCE, ahead: int = _AHEAD) -> None:
        self._memcpy, self._at_once, self._ahead = memcpy, at_once, ahead
        self._parts: deque[_Part] = deque()

    def __call__(self, moves: Moves, queue: Queue) -> None:
        """Implements Memcpy."""
        for some in moves.parts(self._at_once):
            while self._parts and self._waiting + len(some.nbytes) > self._ahead:
                self._wait_for(self._parts.popleft().mark)
            self._memcpy(some, queue)
            self._parts.append(_Part(len(some.nbytes), queue.mark()))

    @property
    def _waiting(self) -> int:
        return sum(part.count for part in self._parts)

    def _wait_for(self, mark: Any) -> None:
        while not mark.query():
            clock.sleep(_NAP)


def memcpy_of(driver: Driver) -> Memcpy:
    """Returns the fastest implementation for registered memory."""
    return Paced(Batched(driver) if driver.batches else OneByOne(driver))
