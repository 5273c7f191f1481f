"""The result of a check: one line for the administrator."""

from __future__ import annotations

from enum import Enum

import msgspec


class Level(Enum):
    """The severity. A warning concerns speed or unused memory; a problem has to be solved."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Result(msgspec.Struct, frozen=True):
    """The subject of a check, and its state or what to do about it."""

    level: Level
    what: str
    text: str


def ok(what: str, text: str) -> Result:
    """Returns a result without a problem."""
    return Result(Level.OK, what, text)


def warning(what: str, text: str) -> Result:
    """Returns a result that does not prevent the daemon from working."""
    return Result(Level.WARNING, what, text)


def problem(what: str, text: str) -> Result:
    """Returns a result that prevents the daemon from working, now or later."""
    return Result(Level.PROBLEM, what, text)
