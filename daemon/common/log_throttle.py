"""Limits log lines that can be caused often: a number per minute and user, and a count of the lines left out.

A rejected engine tries again and again: of identical lines the first few are enough.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pagetier.daemon.common import loop_clock
from pagetier.shm.log_format import event

LINES: Final = 20
SAME: Final = 3
MINUTE_S: Final = 60.0
UNKNOWN_USER: Final = -1  # no user is known to have caused the line


class _Minute(msgspec.Struct):
    ends: float
    lines: list[str] = []
    left_out: int = 0


class LogThrottle:
    """Limits one kind of log line to `most` lines for each user and minute, and to `SAME` identical ones."""

    def __init__(self, log: logging.Logger, most: int = LINES) -> None:
        self._log = log
        self._most = most
        self._minutes: dict[int, _Minute] = {}

    def log(self, level: int, uid: int, line: str, *facts: object, extra: Mapping[str, Any]) -> None:
        """Logs a line, unless the user's limit for this minute is reached.

        The number of lines left out is logged with the first line of the user's next minute.
        """
        if self.count_line(uid, line % facts):
            self._log.log(level, line, *facts, extra=extra)
        else:
            self._minutes[uid].left_out += 1

    def count_line(self, uid: int = UNKNOWN_USER, text: str = "") -> bool:
        """Counts a line that is to be logged now. Returns False if it is not to be logged; then it is not counted."""
        lines = self._minute(uid).lines
        if len(lines) >= self._most or lines.count(text) >= SAME:
            return False
        lines.append(text)
        return True

    def _minute(self, uid: int) -> _Minute:
        now, minute = loop_clock.now(), self._minutes.get(uid)
        if minute is None or minute.ends <= now:
            if minute is not None and minute.left_out:
                self._log_left_out(uid, minute.left_out)
            minute = self._minutes[uid] = _Minute(now + MINUTE_S)
        return minute

    def _log_left_out(self, uid: int, count: int) -> None:
        if uid == UNKNOWN_USER:
            self._log.warning(
                "%d more such lines in one minute were left out", count, extra=event("left_out", count=count)
            )
            return
        line = "%d more such lines caused by user %d in one minute were left out"
        self._log.warning(line, count, uid, extra=event("left_out", uid=uid, count=count))


class FaultEvents(NamedTuple):
    """The logger of a kind of fault, and the events of its lines when it begins and ends."""

    log: logging.Logger
    begins: str
    ends: str


DISK_EVENTS: Final = FaultEvents(logging.getLogger("pagetierd.disk"), "disk_trouble", "disk_well")


class FaultLog:
    """Logs one kind of fault when it begins and when it ends, at most once a minute.

    Attributes:
        reason: The reason of the fault as last reported; "" if there is none or it was forgotten.
    """

    def __init__(
        self,
        comes: str,
        goes: str = "",
        events: FaultEvents = DISK_EVENTS,
    ) -> None:
        self._comes = comes
        self._goes = goes
        self._events = events
        self._throttle = LogThrottle(events.log, most=1)
        self._logged = False
        self.reason = ""

    def forget(self) -> None:
        """Clears the reason, since the state is unknown now. What was logged is remembered."""
        self.reason = ""

    def report(self, reason: str) -> None:
        """Logs that the fault began or ended, if that is news. reason: "" for no fault."""
        self.reason = reason
        if reason and not self._logged and self._throttle.count_line():
            self._events.log.warning(self._comes, reason, extra=event(self._events.begins))
            self._logged = True
        elif self._logged and not reason:
            if self._goes:
                self._events.log.info("%s", self._goes, extra=event(self._events.ends))
            self._logged = False
