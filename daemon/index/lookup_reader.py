"""Reads what attached processes look up, for the curve that `pagetier advise` shows."""

from __future__ import annotations

import logging
from typing import Final

from pagetier.daemon.common.log_throttle import UNKNOWN_USER, LogThrottle
from pagetier.daemon.common.lookup_window import LOOKUP_WINDOW_S
from pagetier.shm._core import Owner
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)

_WINDOW_NS: Final = int(LOOKUP_WINDOW_S * 1e9)


class LookupReader:
    """Reads the rings of all processes, many times a second. On the loop's thread only."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._throttle = LogThrottle(log, most=1)

    def poll(self) -> None:
        """Counts the lookups since the last call."""
        try:
            self._owner.read_lookups(_WINDOW_NS)
        except MemoryError:
            text = "not enough memory to count lookups: pagetier advise shows nothing until there is"
            self._throttle.log(logging.WARNING, UNKNOWN_USER, text, extra=event("lookups_not_counted"))
