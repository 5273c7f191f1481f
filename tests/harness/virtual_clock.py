"""A virtual time for code that waits on threads and descriptors: only waits that end in vain let it pass."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

_T = TypeVar("_T")

_PAUSE_S = 0.001  # real time, between two looks at what other threads do


class VirtualClock:
    """Stands in for the module `time` in a module under test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Returns the virtual time in seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Lets the time pass."""
        self.passes(seconds)

    def passes(self, seconds: float | None) -> None:
        """Lets the time pass in which a wait ends in vain. Raises AssertionError if that wait would have no end."""
        self.passes_until(self.now, seconds)

    def passes_until(self, began: float, seconds: float | None) -> None:
        """Lets the time pass up to the end of a wait. Waits of several threads may pass at the same time."""
        assert seconds is not None, "a wait without an end"
        self.now = max(self.now, began + seconds)


class VirtualThreading:
    """Stands in for the module `threading` in a module under test: events and conditions wait on a virtual clock.

    A wait ends in vain as soon as `is_stuck` says that no other thread will end it.
    """

    def __init__(self, clock: VirtualClock, is_stuck: Callable[[], bool]) -> None:
        class Event(threading.Event):
            """An event."""

            def wait(self, timeout: float | None = None) -> bool:
                """Returns whether the event is set before the timeout has passed."""
                return _wait(super().wait, timeout, clock, is_stuck) or self.is_set()

        class Condition(threading.Condition):
            """A condition."""

            def wait(self, timeout: float | None = None) -> bool:
                """Returns whether another thread has notified this one before the timeout has passed."""
                return _wait(super().wait, timeout, clock, is_stuck)

            def wait_for(self, predicate: Callable[[], _T], timeout: float | None = None) -> _T:
                """Returns the predicate's result: a true one, or the last one before the timeout has passed."""
                while not (result := predicate()) and self.wait(timeout):
                    pass
                return result

        self.Event, self.Condition = Event, Condition

    def __getattr__(self, name: str) -> object:
        return getattr(threading, name)


def _wait(
    wait: Callable[[float], bool], timeout: float | None, clock: VirtualClock, is_stuck: Callable[[], bool]
) -> bool:
    began = clock.now
    while not wait(_PAUSE_S):
        if is_stuck():
            clock.passes_until(began, timeout)
            return False
    return True


class IdlePolls:
    """Stands in for the module `select` in a module under test.

    Instead of waiting, poll() calls `waits` with its timeout in seconds, and looks once more at what is ready.
    """

    def __init__(self, waits: Callable[[float | None], object]) -> None:
        self._waits = waits

    def poll(self) -> _IdlePoll:
        """Returns an object like select.poll()."""
        return _IdlePoll(self._waits)

    def __getattr__(self, name: str) -> object:
        return getattr(select, name)


class _IdlePoll:
    def __init__(self, waits: Callable[[float | None], object]) -> None:
        self._poll, self._waits = select.poll(), waits
        self.register = self._poll.register

    def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
        if not (ready := self._poll.poll(0)):
            self._waits(None if milliseconds is None else milliseconds / 1000)
            ready = self._poll.poll(0)
            assert ready or milliseconds is not None, "nothing ends the wait"
        return ready


class VirtualLock:
    """A lock that another thread does not release in time: acquire() lets its timeout pass on a clock."""

    def __init__(self, clock: VirtualClock, lock: threading.Lock | threading.RLock) -> None:
        self._lock, self._clock = lock, clock
        self.release = lock.release

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Returns whether the lock is free now."""
        if taken := self._lock.acquire(blocking=False):
            return taken
        if blocking:
            self._clock.passes(timeout)
        return False

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
