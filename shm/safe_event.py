"""A condition and an event for threads that signal handlers may interrupt."""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock, RLock

from pagetier.shm import clock
from pagetier.shm.clock import Deadline


class SafeCondition:
    """A condition like threading.Condition that no interrupt leaves locked, or unlocked for a caller that locked it.

    That holds for a second interrupt, too, which comes while the first one is handled.

    Python runs signal handlers in the main thread: at the start of each function, and after each call. The exception of
    one, for example of Ctrl-C, comes there. threading.Condition is entered in Python code: it keeps its lock if the
    exception comes between its enter and the block, and its wait() loses the lock if it comes after the release.

    Attributes:
        lock: Callers enter the lock itself, once, because its enter and exit are indivisible. It is reentrant since
            objects may be finalized at any point of the thread that has it.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self._is_taken: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]  # as Condition does
        self._bells: set[Lock] = set()

    @property
    def is_awaited(self) -> bool:
        """Whether a thread waits."""
        return bool(self._bells)

    def wait(self, timeout: float = math.inf) -> None:
        """Waits for wake_all(), at most `timeout` seconds. The caller has the lock, taken once, also afterwards."""
        bell = Lock()
        bell.acquire()
        try:
            self._bells.add(bell)
            self.lock.release()
            clock.wait(lambda seconds: bell.acquire(timeout=seconds), timeout)
            self.lock.acquire()
        except BaseException:
            # After an interrupt at any step above. Here and not in a function, at whose start another one may come.
            try:
                if not self._is_taken():
                    self.lock.acquire()
            finally:
                if not self._is_taken():
                    self.lock.acquire()
            raise
        finally:
            self._bells.discard(bell)

    def wait_for(self, condition: Callable[[], bool], timeout: float = math.inf) -> bool:
        """Returns whether the condition is true, after waiting for it at most `timeout` seconds.

        The caller has the lock, taken once.
        """
        deadline = Deadline(timeout)
        while not (result := condition()) and (left := deadline.left):
            self.wait(left)
        return result

    def wake_all(self) -> None:
        """Wakes all threads that wait. The caller has the lock."""
        if not self._bells:
            return
        try:
            self._ring()
        except BaseException:  # an interrupt: some may not be woken yet
            try:
                self._ring()
            except BaseException:
                self._ring()
                raise
            raise

    def _ring(self) -> None:
        for bell in self._bells:
            if bell.locked():
                bell.release()


class SafeEvent:
    """A flag that threads can wait for, like threading.Event, that no interrupt leaves locked."""

    def __init__(self) -> None:
        self._set = False
        self._changed = SafeCondition()

    def is_set(self) -> bool:
        """Returns whether the flag is set."""
        return self._set

    def set(self) -> None:
        """Sets the flag and wakes all waiting threads."""
        with self._changed.lock:
            self._set = True
            self._changed.wake_all()

    def clear(self) -> None:
        """Clears the flag."""
        with self._changed.lock:
            self._set = False

    def wait(self, timeout: float = math.inf) -> bool:
        """Waits until the flag is set, at most `timeout` seconds. Returns whether it is set."""
        if self._set:
            return True
        with self._changed.lock:
            return self._changed.wait_for(self.is_set, timeout)
