"""The last notable lines of the daemon's log, for the page. In the daemon's process."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

MOST: Final = 10
_LONGEST: Final = 400  # characters of a text
_ROUTINE: Final = frozenset({"http", "left_out", "metrics", "populated", "progress"})


class NotableEvent(msgspec.Struct, frozen=True):
    """The last line of a kind.

    Attributes:
        event: The kind of the line; that of lines without one is "".
        level: "info", "warning" or "error".
        text: The sentence.
        at: Its time in seconds since 1970.
        count: Lines of this kind until then.
    """

    event: str
    level: str
    text: str
    at: float
    count: int = 1


class NotableEvents(logging.Handler):
    """Keeps the last line of each of the last ten kinds, so that one kind that comes often leaves room for others."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._kinds: dict[str, NotableEvent] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Implements Handler.emit(). Called under the handler's lock, by any thread."""
        kind = str(getattr(record, "fields", {}).get("event", ""))
        if kind in _ROUTINE or (not kind and record.levelno < logging.WARNING):
            return
        before = self._kinds.pop(kind, None)
        text, count = record.getMessage()[:_LONGEST], 1 if before is None else before.count + 1
        self._kinds[kind] = NotableEvent(kind, record.levelname.lower(), text, record.created, count)
        if len(self._kinds) > MOST:
            del self._kinds[next(iter(self._kinds))]

    def latest(self) -> tuple[NotableEvent, ...]:
        """Returns the events, the latest first."""
        self.acquire()
        try:
            return tuple(reversed(self._kinds.values()))
        finally:
            self.release()
