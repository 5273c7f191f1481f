"""The clock of a process, and the virtual one of tests."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from eventually import PATIENCE_S
from pagetier.shm import clock
from pagetier.shm.clock import Deadline
from virtual_clock import VirtualClock


@pytest.mark.parametrize(
    ("seconds", "given"), [(0.25, 0.25), (-1.0, 0.0), (-math.inf, 0.0), (1e300, 1e6), (math.inf, 1e6)]
)
def test_a_wait_is_given_what_locks_and_sockets_accept(seconds: float, given: float) -> None:
    limits: list[float] = []
    assert clock.wait(limits.append, seconds) is None
    assert limits == [given]
    assert threading.Lock().acquire(timeout=given)


def test_a_deadline_is_over_when_its_time_has_passed(virtual_clock: VirtualClock) -> None:
    began, deadline, never = virtual_clock.now, Deadline(5.0), Deadline(math.inf)
    clock.sleep(4.0)
    assert deadline.left == 1.0 and not deadline.is_over
    clock.sleep(2.0)
    assert deadline.left == 0.0 and deadline.is_over
    assert never.left == math.inf and not never.is_over
    assert virtual_clock.now == began + 6.0


@pytest.fixture
def earlier_thread() -> Iterator[ThreadPoolExecutor]:
    """Yields a thread that is there before the virtual clock, as one that another test has left."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(bool).result()
        yield thread


def test_no_virtual_time_passes_in_threads_that_were_there_before(
    earlier_thread: ThreadPoolExecutor, virtual_clock: VirtualClock
) -> None:
    began = virtual_clock.now
    earlier_thread.submit(clock.sleep, 5.0).result()
    assert virtual_clock.now == began
    over, waits = threading.Event(), threading.Event()

    def look(_: float) -> bool:
        waits.set()
        return over.is_set()

    waiting = earlier_thread.submit(clock.wait, look, math.inf)
    assert waits.wait(PATIENCE_S)
    clock.sleep(1.0)
    over.set()
    assert waiting.result() and virtual_clock.now == began + 1.0


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_a_deadline_without_time_is_over(seconds: float) -> None:
    assert Deadline(seconds).is_over


def test_a_deadline_says_that_a_text_is_no_number_of_seconds() -> None:
    with pytest.raises(TypeError, match=r"^a timeout must be a number of seconds, not str$"):
        Deadline("1s")  # type: ignore[arg-type]
