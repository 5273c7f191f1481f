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


class Ration:
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
