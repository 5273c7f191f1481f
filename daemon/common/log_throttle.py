"""Lines in the log that others can cause: so many a minute for each user, and of the rest how many there were.

An engine that is refused comes again and again: of lines that say the same a few are enough.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from pagetier.shm.log_format import event

LINES: Final = 20
SAME: Final = 3
MINUTE_S: Final = 60.0
NOBODY: Final = -1  # no user is known to have caused it


class _Minute(msgspec.Struct):
    ends: float
    told: list[str] = []
    left_out: int = 0


class LogThrottle:
    """Of one kind of line. What is left out is told with the first line of the user's next minute."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._minutes: dict[int, _Minute] = {}

    def tell(self, level: int, uid: int, line: str, *facts: object, extra: Mapping[str, Any]) -> None:
        """Logs it, if the user's minute has room for it."""
        minute = self._minute(uid)
        text = line % facts
        if len(minute.told) < LINES and minute.told.count(text) < SAME:
            minute.told.append(text)
            self._log.log(level, line, *facts, extra=extra)
        else:
            minute.left_out += 1

    def _minute(self, uid: int) -> _Minute:
        now, minute = self._clock(), self._minutes.get(uid)
        if minute is None or minute.ends <= now:
            if minute is not None and minute.left_out:
                self._tell_left_out(uid, minute.left_out)
            minute = self._minutes[uid] = _Minute(now + MINUTE_S)
        return minute

    def _tell_left_out(self, uid: int, count: int) -> None:
        if uid == NOBODY:
            self._log.warning("there were %d more such lines in a minute", count, extra=event("left_out", count=count))
            return
        line = "of user %d there were %d more such lines in a minute"
        self._log.warning(line, uid, count, extra=event("left_out", uid=uid, count=count))


log = logging.getLogger("pagetierd.disk")

QUIET_S: Final = 60.0


class FaultLog:
    """One kind of trouble; comes: a line with a place for the reason; goes: a line, "" for none.

    reason: why things are as they were told last, "" if they are well or it was forgotten.
    """

    def __init__(self, comes: str, goes: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._comes = comes
        self._goes = goes
        self._clock = clock
        self._told_at = float("-inf")
        self._told = False
        self.reason = ""

    def forget(self) -> None:
        """It is not known how it is now. The log goes by what was told."""
        self.reason = ""

    def tell(self, reason: str) -> None:
        """How it is now; "": well."""
        self.reason = reason
        if reason and not self._told and self._clock() - self._told_at >= QUIET_S:
            log.warning(self._comes, reason, extra=event("disk_trouble"))
            self._told, self._told_at = True, self._clock()
        elif self._told and not reason:
            if self._goes:
                log.info("%s", self._goes, extra=event("disk_well"))
            self._told = False
