"""Waiting for an element of a SimpleQueue, never longer than asked."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import TypeVar

from pagetier.shm import clock

_T = TypeVar("_T")


def get_in_time(queue: SimpleQueue[_T], seconds: float | None) -> _T:
    """Returns the next element, waiting at most `seconds` for it; None waits without a limit.

    SimpleQueue.get(timeout=...) of CPython up to 3.12 takes the lock that it sleeps on, and then computes the time that
    is left. If its thread was preempted for longer than that, it sleeps without a limit (6 to 63 of 200,000 calls with
    1e-6 to 1e-9 s on a busy machine, here). After a get() that does not wait, the lock is taken already, and the time
    that is left is computed only after a signal. This holds for one receiver only.

    Raises:
        Empty: No element came in time.
    """
    try:  # suppress() takes longer than the call
        return queue.get(block=False)
    except Empty:
        pass
    if seconds is None:
        return queue.get()
    for element in clock.wait(lambda left: _elements(queue, left), seconds):
        return element
    raise Empty


def _elements(queue: SimpleQueue[_T], seconds: float) -> list[_T]:
    """Returns the next element, or none if it does not come in time."""
    try:
        return [queue.get(timeout=seconds)]
    except Empty:
        return []
