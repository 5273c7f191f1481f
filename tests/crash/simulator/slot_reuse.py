"""Measures how soon the slots of dead processes are free again, and with them their memory."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from oracle.checker import Kind, Violation

LIMIT_S: Final = 1.0
"""The limit that DESIGN promises, in seconds while a daemon runs."""


class SlotReuse:
    """The dead processes whose slots are still in use. All times are CLOCK_MONOTONIC in seconds.

    The clock of this class runs while a daemon serves and stands while the daemon is stopped. It restarts at 0 with the
    next daemon, because that has to detect all deaths again. A slot that is free soon can be seen in any daemon's life,
    a slot that is late only in a long one. To avoid a bias, a death is measured only if the daemon's life lasted for
    LIMIT_S after it, whatever happened afterwards.

    `late` is the number of seconds after which a slot in use is a violation. `returned` holds the seconds of all
    measured deaths; if a daemon died before the slot was free, the time until then.
    """

    def __init__(self, late: float) -> None:
        self._late = late
        self._clock = 0.0
        self._seen: float | None = None
        self._life = 0
        self._waiting: dict[int, float] = {}
        self._back: list[tuple[float, float]] = []  # the clock at the death, and the seconds since then
        self.returned: list[float] = []
        self.violations: list[Violation] = []

    @property
    def pending(self) -> bool:
        """Whether a dead process still had a slot at the last observation."""
        return bool(self._waiting)

    def died(self, pid: int, now: float) -> None:
        """Records that an engine's process has ended."""
        self._waiting[pid] = self._clock + (now - self._seen if self._seen is not None else 0.0)

    def daemon_stopped(self, now: float) -> None:
        """Stops the clock because the daemon is stopped; the next observation restarts it."""
        self._advance_to(now)
        self._seen = None

    def no_daemon(self) -> None:
        """Measures the deaths of the last daemon's life; slots that are still in use wait for the next daemon."""
        for since in self._waiting.values():
            self._back.append((since, self._clock - since))
        self.returned += [waited for since, waited in self._back if self._clock - since >= LIMIT_S]
        self._back.clear()
        self._waiting = dict.fromkeys(self._waiting, 0.0)
        self._clock, self._seen = 0.0, None

    def observe(self, daemon: int, taken: Collection[int], now: float) -> None:
        """Takes the pids that have a slot while the daemon with the pid `daemon` serves."""
        if daemon != self._life:
            self.no_daemon()
            self._life = daemon
        self._advance_to(now)
        self._seen = now
        for pid, since in list(self._waiting.items()):
            waited = self._clock - since
            if pid not in taken:
                self._back.append((since, waited))
                del self._waiting[pid]
            elif waited > self._late:
                self.violations.append(Violation(Kind.LATE, f"its slot is still in use after {waited:.2f} s", pid=pid))
                self.returned.append(waited)
                del self._waiting[pid]

    def end(self) -> None:
        """Measures all remaining deaths: the run waited for all slots to be free before this daemon ended."""
        self.returned += [waited for _, waited in self._back]
        self._back.clear()

    def _advance_to(self, now: float) -> None:
        if self._seen is not None:
            self._clock += now - self._seen
