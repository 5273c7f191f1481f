"""The circuit breaker of the fleet: opens after failures in a row, and closes when a probe is answered."""

from __future__ import annotations

from enum import Enum
from typing import Final

FAILURES: Final = 3  # in a row open the breaker
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0


class Call(Enum):
    """What the fleet is asked to do."""

    QUESTION = "question"
    READ = "read"
    WRITE = "write"


class Breaker:
    """Knows whether the fleet may be asked. Times are those of one monotonic clock, in seconds.

    An answer clears only the failures of calls of its kind, because a store may answer questions and hang in reads.
    After a probe has closed the breaker, other kinds are on trial: their next failure opens it again, with a longer
    pause, until one of them is answered. Writes have a breaker of their own, whose probes are writes.

    Attributes:
        is_open: Nothing but probes may be asked.
        openings: How often the breaker opened.
        opened_at: When it opened last.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.openings = 0
        self.opened_at = 0.0
        self._failures = dict.fromkeys(Call, 0)
        self._pause = _FIRST_PAUSE_S
        self._probe_at = 0.0

    def answered(self, call: Call) -> None:
        """Takes note of an answer: also that a page is absent is one."""
        self._failures[call] = 0
        failures = sum(self._failures.values())
        if not failures:
            self._pause = _FIRST_PAUSE_S
        if failures < FAILURES:
            self.is_open = False

    def probe_answered(self) -> None:
        """Takes note of the answer to a probe, which closes the breaker."""
        self.answered(Call.QUESTION)
        self.is_open = False

    def failed(self, call: Call, now: float) -> None:
        """Takes note of a failure or of an answer that was too late."""
        self._failures[call] += 1
        if not self.is_open and sum(self._failures.values()) >= FAILURES:
            self.is_open, self.opened_at, self._probe_at = True, now, now + self._pause
            self.openings += 1

    def return_probe(self, now: float) -> None:
        """Takes note that what was sent as a probe asked nothing: another one is due."""
        self._probe_at = min(self._probe_at, now)

    def take_probe(self, now: float) -> bool:
        """Returns whether a probe is due, and if so, takes it as sent: the pause before the next one is longer."""
        due = self.is_open and now >= self._probe_at
        if due:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
            self._probe_at = now + self._pause
        return due
