"""Waits for elements of a queue."""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue

import pytest

from pagetier.shm.timed_get import get_in_time

CALLS = 20_000
DAY_S = 86400.0


def test_an_element_that_is_there_is_returned_at_once() -> None:
    queue: SimpleQueue[int] = SimpleQueue()
    queue.put(7)
    assert get_in_time(queue, 0.0) == 7
    queue.put(8)
    assert get_in_time(queue, None) == 8


def test_an_element_that_comes_ends_the_wait() -> None:
    queue: SimpleQueue[int] = SimpleQueue()
    threading.Timer(0.05, queue.put, (7,)).start()
    assert get_in_time(queue, DAY_S) == 7


class Watched(SimpleQueue[int]):
    """A queue that records how long its calls may wait."""

    def __init__(self) -> None:
        self.limits: list[float | None] = []

    def get(self, block: bool = True, timeout: float | None = None) -> int:
        """Returns the next element."""
        assert not block or timeout is not None, "a wait without an end"
        self.limits.append(timeout if block else 0.0)
        return super().get(block, timeout)


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-3, 0.1])
def test_without_an_element_the_wait_ends_in_time(seconds: float) -> None:
    queue = Watched()
    with pytest.raises(Empty):
        get_in_time(queue, seconds)
    assert queue.limits == [0.0, seconds]


def test_no_wait_is_without_a_limit() -> None:
    """Without get_in_time() some of these calls wait for ever, the more the busier the machine is."""
    for _ in range(CALLS):
        with suppress(Empty):
            get_in_time(SimpleQueue[int](), 1e-9)
