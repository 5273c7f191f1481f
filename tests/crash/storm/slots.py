"""How soon the slots of the dead are free again: what they held is in use again from then on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from oracle.checker import Kind, Violation

LIMIT_S: Final = 1.0
"""DESIGN's own promise, counted while a daemon runs."""

_BUSY_S: Final = 1.5
"""What a machine may take longer on which a hundred processes want two cores, before it is called a violation."""


class Mourning:
    """The dead that still have a slot. Times are CLOCK_MONOTONIC in seconds."""

    def __init__(self) -> None:
        self._died: dict[int, float] = {}
        self._served_since = 0.0
        self.returned: list[float] = []
        self.violations: list[Violation] = []

    @property
    def waits(self) -> bool:
        """Whether somebody who is dead still has a slot, as far as was looked."""
        return bool(self._died)

    def died(self, pid: int, now: float) -> None:
        """An engine's process has ended."""
        self._died[pid] = now

    def no_daemon(self, now: float) -> None:
        """There is none, or it stands still: nobody's time runs."""
        self._served_since = now

    def look(self, taken: Collection[int], now: float) -> None:
        """Who has a slot while a daemon serves."""
        for pid, died in list(self._died.items()):
            waited = now - max(died, self._served_since)
            if pid not in taken:
                self.returned.append(waited)
                del self._died[pid]
            elif waited > LIMIT_S + _BUSY_S:
                self.violations.append(Violation(Kind.LATE, f"its slot is taken after {waited:.2f} s", pid=pid))
                del self._died[pid]
