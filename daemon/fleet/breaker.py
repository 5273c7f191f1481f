"""The circuit breaker of the fleet: opens after failures in a row, and closes when a probe is answered."""

from __future__ import annotations

from typing import Final

FAILURES: Final = 3  # in a row open the breaker
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0


class Breaker:
    """Knows whether the fleet may be asked. Times are those of one monotonic clock, in seconds.

    Attributes:
        is_open: Nothing but probes may be asked.
        openings: How often the breaker opened.
        opened_at: When it opened last.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.openings = 0
        self.opened_at = 0.0
        self._failures = 0
        self._pause = _FIRST_PAUSE_S
        self._probe_at = 0.0

    def answered(self) -> None:
        """Takes note of an answer, which closes the breaker: also that a page is absent is one."""
        self.is_open, self._failures, self._pause = False, 0, _FIRST_PAUSE_S

    def failed(self, now: float) -> None:
        """Takes note of a failure or of an answer that was too late."""
        self._failures += 1
        if not self.is_open and self._failures >= FAILURES:
            self.is_open, self.opened_at, self._probe_at = True, now, now + self._pause
            self.openings += 1

    def take_probe(self, now: float) -> bool:
        """Returns whether a probe is due, and if so, takes it as sent: the pause before the next one is longer."""
        due = self.is_open and now >= self._probe_at
        if due:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
            self._probe_at = now + self._pause
        return due
