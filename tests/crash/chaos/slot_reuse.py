"""How soon the slots of the dead are free again: what they held is in use again from then on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from oracle.checker import Kind, Violation

LIMIT_S: Final = 1.0
"""DESIGN's own promise, counted while a daemon runs."""


class _Back(msgspec.Struct, frozen=True):
    """A slot that is free again. since: where the clock stood when its process died; waited: seconds from then on."""

    since: float
    waited: float


class Mourning:
    """The dead that still have a slot. now: CLOCK_MONOTONIC in seconds.

    A clock runs while a daemon serves, stands while that is stopped, and begins anew with the next daemon, as that has
    to mourn anew. Whose slot was back soon can be told in any life, who was late only in a life that lasted: so a death
    is measured where the daemon's life lasted for LIMIT_S after it, and then whatever became of it.

    late: seconds from when on it is a violation. returned: seconds of all that were measured; those whose daemon died
    over it are there with what they had waited.
    """

    def __init__(self, late: float) -> None:
        self._late = late
        self._clock = 0.0
        self._seen: float | None = None
        self._life = 0
        self._waiting: dict[int, float] = {}
        self._back: list[_Back] = []
        self.returned: list[float] = []
        self.violations: list[Violation] = []

    @property
    def waits(self) -> bool:
        """Whether somebody who is dead still has a slot, as far as was looked."""
        return bool(self._waiting)

    def died(self, pid: int, now: float) -> None:
        """An engine's process has ended."""
        self._waiting[pid] = self._clock + (now - self._seen if self._seen is not None else 0.0)

    def stands(self, now: float) -> None:
        """The daemon is stopped: nobody's time runs until it is looked at again."""
        self._go_on_to(now)
        self._seen = None

    def no_daemon(self) -> None:
        """There is none: what was to be measured in the last one's life is, and the rest waits for the next one."""
        for since in self._waiting.values():
            self._measure(_Back(since, self._clock - since))
        for back in self._back:
            self._measure(back)
        self._back.clear()
        self._waiting = dict.fromkeys(self._waiting, 0.0)
        self._clock, self._seen = 0.0, None

    def look(self, daemon: int, taken: Collection[int], now: float) -> None:
        """Who has a slot while the daemon with this pid serves."""
        if daemon != self._life:
            self.no_daemon()
            self._life = daemon
        self._go_on_to(now)
        self._seen = now
        for pid, since in list(self._waiting.items()):
            waited = self._clock - since
            if pid not in taken:
                self._back.append(_Back(since, waited))
                del self._waiting[pid]
            elif waited > self._late:
                self.violations.append(Violation(Kind.LATE, f"its slot is taken after {waited:.2f} s", pid=pid))
                self.returned.append(waited)
                del self._waiting[pid]

    def end(self) -> None:
        """Nobody would have ended this daemon before all slots were free: so all of them are measured."""
        self.returned += [back.waited for back in self._back]
        self._back.clear()

    def _go_on_to(self, now: float) -> None:
        if self._seen is not None:
            self._clock += now - self._seen

    def _measure(self, back: _Back) -> None:
        if self._clock - back.since >= LIMIT_S:
            self.returned.append(back.waited)
