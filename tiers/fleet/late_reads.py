"""Lets writes wait while a read is late: an engine waits for a read, and nothing waits for a write."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final

LATE_S: Final = 0.1
_POLL_S: Final = 0.01


class LateReads:
    """Knows the reads that are running. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began: dict[int, float] = {}

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Counts a read for the time of a block; at most one a thread."""
        me = threading.get_ident()
        with self._lock:
            self._began[me] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._began[me]

    def wait(self, most: float) -> None:
        """Returns when no read has been running for LATE_S, or after `most` seconds."""
        until = time.monotonic() + most
        while self._is_late() and time.monotonic() < until:
            time.sleep(_POLL_S)

    def _is_late(self) -> bool:
        with self._lock:
            oldest = min(self._began.values(), default=time.monotonic())
        return time.monotonic() - oldest > LATE_S
