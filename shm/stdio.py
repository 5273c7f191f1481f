"""Makes a process independent of a stderr that is closed or cannot be written to."""

from __future__ import annotations

import atexit
import os
import sys


def settle_stderr() -> None:
    """Opens /dev/null as sys.stderr if the shell closed it (2>&-). A full stderr then does not change the exit code."""
    if sys.stderr is None:
        sys.stderr = os.fdopen(_to_nothing(), "w")
    atexit.register(_forget_the_rest)


def _to_nothing() -> int:
    """Returns a writable descriptor of /dev/null, and fills all lower free descriptors with it.

    What the core and its libraries print to descriptor 2 must never end in a segment.
    """
    while (descriptor := os.open(os.devnull, os.O_WRONLY)) < 2:
        pass
    return descriptor


def _forget_the_rest() -> None:
    """Flushes stderr, or discards its buffer: Python would fail to flush it again at exit and change the exit code."""
    try:
        sys.stderr.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stderr.fileno())
        os.close(null)
    except ValueError:  # already closed
        pass
