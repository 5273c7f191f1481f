"""Log lines that people and machines read: logfmt on stderr, with journald's priorities where journald reads it.

`level=info name=pagetierd event=ready msg="ready on ..." pages=12`: msg is the sentence, the fields behind it are the
numbers in it. `event` names a kind of line that an administrator can wait for.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pagetier.shm.stdio import settle_stderr

_PLAIN: Final = re.compile(r"[!-~]+")
_PRIORITIES: Final = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG: Final = 7


def event(name: str, **fields: object) -> dict[str, Any]:
    """For `extra=` of a logging call: what kind of line it is, and the numbers in it."""
    return {"fields": {"event": name, **fields}}


class Logfmt(logging.Formatter):
    """One line a record, tracebacks too, after the time."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return f"ts={_time(record)} {_pairs(record, self)}"


class Journald(logging.Formatter):
    """One line a record, after its priority; journald knows the time."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return f"<{priority(record.levelno)}>{_pairs(record, self)}"


def log_to_stderr(level: str) -> None:
    """Sends what this process logs to stderr, from `level` on; to nobody where that is closed."""
    settle_stderr()
    handler = logging.StreamHandler()
    handler.setFormatter(formatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def formatter() -> logging.Formatter:
    """How lines on stderr look, by who reads it."""
    return Journald() if journald_reads(os.environ) else Logfmt()


def journald_reads(environ: Mapping[str, str]) -> bool:
    """Whether stderr is the stream to journald that systemd speaks of."""
    try:
        told = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return environ.get("JOURNAL_STREAM") == f"{told.st_dev}:{told.st_ino}"


def priority(level: int) -> int:
    """Syslog's number for a level."""
    return next((number for least, number in _PRIORITIES if level >= least), _DEBUG)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _pairs(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    fields = dict(getattr(record, "fields", {}))
    what = {"event": fields.pop("event")} if "event" in fields else {}
    pairs = {"level": record.levelname.lower(), "name": record.name, **what, "msg": record.getMessage(), **fields}
    if record.exc_info:
        pairs["trace"] = formatter.formatException(record.exc_info)
    return " ".join(f"{key}={_value(value)}" for key, value in pairs.items())


def _value(value: object) -> str:
    """As it is, or in quotes where it would not be one word."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    bare = _PLAIN.fullmatch(text) and '"' not in text and "=" not in text
    return text if bare else json.dumps(text, ensure_ascii=not text.isprintable())
