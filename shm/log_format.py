"""Log lines on stderr: sentences on a terminal, else logfmt, with priorities if stderr is connected to journald.

In `level=info name=pagetierd event=ready msg="ready on ..." pages=12`, msg is the sentence and the fields behind it are
its numbers. `event` names the kind of the line, for an administrator's alerts.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from pagetier.shm.background_stream import BackgroundStream
from pagetier.shm.stdio import settle_stdio

_PLAIN: Final = re.compile(r"[!-~]+")
_SENTENCE: Final = re.compile(r'^ts=.*? msg=("(?:[^"\\]|\\.)*"|[!-~]+)')
_PRIORITIES: Final = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG: Final = 7


def event(name: str, **fields: object) -> dict[str, Any]:
    """Returns the `extra=` argument of a logging call: the kind of the line and its fields."""
    return {"fields": {"event": name, **fields}}


class Logfmt(logging.Formatter):
    """Formats each record, with its traceback, as one line that begins with the time."""

    def format(self, record: logging.LogRecord) -> str:
        """Implements Formatter.format()."""
        return f"ts={_time(record)} {_pairs(record, self)}"


class Terminal(logging.Formatter):
    """Formats each record for a person: the local time, the level unless it is info, and the sentence."""

    def format(self, record: logging.LogRecord) -> str:
        """Implements Formatter.format()."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level}{record.getMessage()}{trace}"


class Journald(logging.Formatter):
    """Formats each record as one line that begins with its priority. journald records the time."""

    def format(self, record: logging.LogRecord) -> str:
        """Implements Formatter.format()."""
        return f"<{priority(record.levelno)}>{_pairs(record, self)}"


def sentence_of(line: str) -> str:
    """Returns the sentence of a line that Logfmt has written; any other line unchanged."""
    found = _SENTENCE.search(line)
    if not found:
        return line
    return str(json.loads(found[1])) if found[1].startswith('"') else found[1]


def log_to_stderr(level: str) -> None:
    """Logs records of `level` and above to stderr. Discards them if stderr is closed.

    From now on, nothing that this process writes to stderr waits for its reader.
    """
    settle_stdio()
    chosen = formatter()
    if _descriptor_of(sys.stderr) is not None:
        sys.stderr = stream = BackgroundStream(sys.stderr, lambda lines: f"{chosen.format(_lines_lost(lines))}\n")
        atexit.register(stream.finish)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(chosen)
    logging.basicConfig(level=level.upper(), handlers=[handler])


def finish_log() -> None:
    """Waits for at most a second until the log was written. For a process that ends by os._exit()."""
    if isinstance(sys.stderr, BackgroundStream):
        sys.stderr.finish()


def _lines_lost(lines: int) -> logging.LogRecord:
    text = "%d log lines were left out, because stderr was not read or could not be written"
    record = logging.LogRecord("pagetier.log", logging.WARNING, "", 0, text, (lines,), None)
    vars(record).update(event("log_lost", lines=lines))
    return record


def formatter() -> logging.Formatter:
    """Returns the formatter for stderr: Terminal or Journald if one of these reads it, else Logfmt."""
    if sys.stderr is not None and sys.stderr.isatty():
        return Terminal()
    return Journald() if journald_reads(os.environ) else Logfmt()


def journald_reads(environ: Mapping[str, str]) -> bool:
    """Returns whether stderr is the stream that systemd connected to journald, according to $JOURNAL_STREAM."""
    descriptor = _descriptor_of(sys.stderr)
    if descriptor is None:
        return False
    stream = os.fstat(descriptor)
    return environ.get("JOURNAL_STREAM") == f"{stream.st_dev}:{stream.st_ino}"


def _descriptor_of(stream: TextIO) -> int | None:
    """Returns the descriptor of a stream, None if it is closed or not a file."""
    try:
        os.fstat(descriptor := stream.fileno())
    except (OSError, ValueError):
        return None
    return descriptor


def priority(level: int) -> int:
    """Returns syslog's number for a level."""
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
    """Returns the text of a value, quoted unless it is one word."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    bare = _PLAIN.fullmatch(text) and '"' not in text and "=" not in text
    return text if bare else json.dumps(text, ensure_ascii=not text.isprintable())
