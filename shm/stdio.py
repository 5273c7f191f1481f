"""Stderr that is closed, or can not be written to: what a process does and how it ends do not hang on it."""

from __future__ import annotations

import atexit
import os
import sys


def settle_stderr() -> None:
    """Gives sys.stderr a place to write to after the shell's 2>&-, and a process whose stderr is full its exit code."""
    if sys.stderr is None:
        sys.stderr = os.fdopen(_to_nothing(), "w")
    atexit.register(_forget_the_rest)


def _to_nothing() -> int:
    """A descriptor after which none below it is free: what the core and its libraries print must reach no segment."""
    while (descriptor := os.open(os.devnull, os.O_WRONLY)) < 2:
        pass
    return descriptor


def _forget_the_rest() -> None:
    """What Python still holds would fail again when it ends, which makes another exit code of any."""
    try:
        sys.stderr.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stderr.fileno())
        os.close(null)
    except ValueError:  # closed meanwhile
        pass
