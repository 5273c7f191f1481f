"""What a check found: one line for people."""

from __future__ import annotations

from enum import Enum

import msgspec


class Level(Enum):
    """How bad it is. A warning is for who wants more speed or less clutter; a problem has to be solved."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Result(msgspec.Struct, frozen=True):
    """What was looked at, and how it is or what to do about it."""

    level: Level
    what: str
    text: str


def ok(what: str, text: str) -> Result:
    """All is well."""
    return Result(Level.OK, what, text)


def warning(what: str, text: str) -> Result:
    """It works, but."""
    return Result(Level.WARNING, what, text)


def problem(what: str, text: str) -> Result:
    """It does not work, or will not."""
    return Result(Level.PROBLEM, what, text)
