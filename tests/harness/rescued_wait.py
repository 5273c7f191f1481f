"""Waits that a test frees after a minute, so that a call that waits in vain fails by its result and hangs no test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HOUR_S = 3600.0
_WAITED_S = 60.0


@contextmanager
def rescued_by(end: Callable[[], object]) -> Iterator[None]:
    """Calls `end` once if the block takes a minute. A call that waited then returns what it must not return."""
    timer = threading.Timer(_WAITED_S, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
