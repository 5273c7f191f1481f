"""The clock of every process that is not an event loop: what measures or waits asks it, so that a test can set it.

Its functions are called as `clock.now()`, because a test replaces them here: tests/harness/virtual_clock.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

_T = TypeVar("_T")
_LONGEST_S: Final = 1e6  # locks and sockets accept more than that, but not infinity

now = time.monotonic
"""Returns the seconds since some moment before; they never go back and do not count a suspended machine."""

now_ns = time.monotonic_ns
"""Returns the same in nanoseconds, as the index notes the moments of attachments and uses."""

date = time.time
"""Returns the seconds since 1970. An administrator may set them back."""

sleep = time.sleep
"""Lets this thread sleep for some seconds."""


def wait(block: Callable[[float], _T], seconds: float) -> _T:
    """Returns the result of a function that blocks for at most the seconds that are passed to it.

    Args:
        block: Waits for a lock, a queue or a descriptor. Its result is false if the wait was in vain. A virtual clock
            may call it several times, so it must change nothing then.
        seconds: How long it may block: none if negative, and at most 11 days.
    """
    return block(min(max(0.0, seconds), _LONGEST_S))


class Deadline:
    """A moment by which something must have happened.

    Args:
        seconds: How far it is away; infinite for a moment that never comes.
    """

    __slots__ = ("_at",)

    def __init__(self, seconds: float) -> None:
        try:
            self._at = now() + seconds
        except TypeError:
            raise TypeError(f"a timeout must be a number of seconds, not {type(seconds).__name__}") from None

    @property
    def left(self) -> float:
        """The seconds until then, never negative."""
        left = self._at - now()
        return left if left > 0 else 0.0

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return not self.left
