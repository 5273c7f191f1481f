"""The clock of every process that is not an event loop: what waits or measures asks it, so that a test can set it."""

from __future__ import annotations

import time


def now() -> float:
    """Returns the seconds since some moment before; they never go back and do not count a suspended machine."""
    return time.monotonic()


def now_ns() -> int:
    """Returns the same in nanoseconds, as the index notes the moments of attachments and uses."""
    return time.monotonic_ns()


def date() -> float:
    """Returns the seconds since 1970. An administrator may set them back."""
    return time.time()


def sleep(seconds: float) -> None:
    """Lets this thread sleep."""
    time.sleep(seconds)


class Deadline:
    """A moment by which something must have happened.

    Args:
        seconds: How far it is away.
    """

    def __init__(self, seconds: float) -> None:
        self._at = now() + seconds

    @property
    def left(self) -> float:
        """The seconds until then, never negative."""
        return max(0.0, self._at - now())

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return self._at <= now()
