"""Reports that the host has no memory for more of the arena."""

from __future__ import annotations

import logging

from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.shm._core import Owner
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)


class Shortage:
    """Logs when the arena cannot get more memory from the host. On the loop's thread only.

    Frames without memory are not granted, so engines continue. A populated arena never lacks memory.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._lacked = False
        self._throttle = LogThrottle(log, most=1)

    def check(self) -> None:
        """Logs a new shortage, at most once a minute. Cheap, for a call a few times a second."""
        before, self._lacked = self._lacked, self._owner.lacks_memory
        if self._lacked and not before and self._throttle.count_line():
            log.warning(
                "no memory for more of the arena: pages are evicted early, stores rejected, until /dev/shm has room",
                extra=event("arena_short"),
            )
