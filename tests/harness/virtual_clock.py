"""A virtual time for code that waits on threads and descriptors: only waits that end in vain let it pass."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from types import TracebackType


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
        assert seconds is not None, "a wait without an end"
        self.now += max(0.0, seconds)


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
    """A reentrant lock that another thread does not release in time: acquire() lets its timeout pass on a clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._lock, self._clock = threading.RLock(), clock
        self.release = self._lock.release

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
