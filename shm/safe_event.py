"""An event for threads that signal handlers may interrupt."""

from __future__ import annotations

import threading


class SafeEvent:
    """A flag that threads can wait for, like threading.Event, that no interrupt leaves locked.

    The main thread of an engine may be interrupted at any point of wait(), for example by Ctrl-C. threading.Event
    enters its condition in Python code: an interrupt after the lock was taken, and before the block, would leave the
    lock taken, and the thread that calls set() would hang forever.
    """

    def __init__(self) -> None:
        self._set = False
        # Reentrant, and entered itself: then an interrupt within Condition.wait() leaves it as it was.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def is_set(self) -> bool:
        """Returns whether the flag is set."""
        return self._set

    def set(self) -> None:
        """Sets the flag and wakes all waiting threads."""
        with self._lock:
            self._set = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Clears the flag."""
        with self._lock:
            self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the flag is set, at most `timeout` seconds. Returns whether it is set."""
        if self._set:
            return True
        with self._lock:
            return self._changed.wait_for(self.is_set, timeout)
