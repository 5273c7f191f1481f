"""How many may ask for the metrics at once: one who connects without end leaves the daemon's descriptors to others."""

from __future__ import annotations

import logging
from typing import Final

from pagetier.daemon.common.log_throttle import NOBODY, Ration
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)

# Each Prometheus has one at a time.
MOST: Final = 32


class Guests:
    """Counts open connections. On the loop's thread."""

    def __init__(self) -> None:
        self._open = 0
        self._complaints = Ration(log)

    def enter(self) -> bool:
        """Whether there is room for another one, which is counted then; the log is told where there is none."""
        if self._open >= MOST:
            facts = event("metrics_full", open=MOST)
            line = "a connection to the metrics is closed: there are %d"
            self._complaints.tell(logging.WARNING, NOBODY, line, MOST, extra=facts)
            return False
        self._open += 1
        return True

    def leave(self) -> None:
        """One that entered is closed."""
        self._open -= 1
