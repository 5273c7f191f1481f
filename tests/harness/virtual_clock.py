"""A virtual time for a whole process that has no event loop: it passes only in waits that end in vain."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from eventually import pace
from pagetier.shm import clock

_T = TypeVar("_T")

_PAUSE_S = 0.001  # real time, between two looks at what other threads do
_really_wait = clock.wait


class VirtualClock:
    """Stands in for pagetier.shm.clock.

    Attributes:
        now: The time in seconds.
        is_stuck: Called in a wait that would block. Returns whether nothing ends it but its timeout, which then passes.
            Otherwise the wait looks again after a millisecond. By default that is so at once, for a test whose
            other threads end no wait, but not in threads that were there before: those of fixtures, and of an earlier
            test's client that still looks for its daemon. A test that lets the time pass itself, by passes(),
            returns False.
        is_over: The test has ended: a thread that still waits continues in real time.
    """

    def __init__(self) -> None:
        self.now = math.ceil(clock.now()) + 0.0  # not before what was noted in real time
        others = set(threading.enumerate()) - {threading.current_thread()}
        self.is_stuck: Callable[[], bool] = lambda: threading.current_thread() not in others
        self.is_over = False

    def passes(self, seconds: float) -> None:
        """Lets some time pass, as if the running code took so long."""
        self.now += seconds

    def sleep(self, seconds: float) -> None:
        """Lets the time pass that a thread sleeps, or a moment of real time if others may end what it waits for."""
        if self.is_stuck():
            self.passes(seconds)
        else:
            pace(_PAUSE_S)

    def wait(self, block: Callable[[float], _T], seconds: float) -> _T:
        """Returns the result of `block` once that is true, or the last one when the time has passed.

        Waits of several threads pass at the same time. Raises TypeError for what a lock takes for no number of seconds.
        """
        if not isinstance(seconds, float | int):
            raise TypeError(f"{type(seconds).__name__} is neither float nor int")
        ends = self.now + max(0.0, seconds)
        while not (result := block(0.0)) and self.now < ends:
            if self.is_over:
                return _really_wait(block, ends - self.now)
            if not self.is_stuck():
                pace(_PAUSE_S)
                continue
            if result := block(0.0):  # what ended it came before all others were stuck
                return result
            assert ends < math.inf, "a wait without an end"
            self.now = max(self.now, ends)
        return result


def in_main_thread() -> bool:
    """Returns whether the main thread calls this: as `is_stuck`, time passes in the waits of the test itself only."""
    return threading.current_thread() is threading.main_thread()


@pytest.fixture
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """Yields the time of this process, except for recv() of a link, in which the kernel waits for 0.1 s at most."""
    virtual = VirtualClock()
    monkeypatch.setattr(clock, "now", lambda: virtual.now)
    monkeypatch.setattr(clock, "sleep", virtual.sleep)
    monkeypatch.setattr(clock, "wait", virtual.wait)
    yield virtual
    virtual.is_over = True


@pytest.fixture
def standing_clock(virtual_clock: VirtualClock) -> VirtualClock:
    """Returns the time of this process, which passes only when the test says so, by passes()."""
    virtual_clock.is_stuck = lambda: False
    return virtual_clock
