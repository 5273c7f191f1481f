"""A clock that stands still until a test advances it."""

from __future__ import annotations


class Clock:
    """A function that returns `now`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
