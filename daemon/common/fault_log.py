"""Trouble that comes and goes is told in the log when it comes and when it has gone, but not again and again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from pagetier.shm.log_format import event

log = logging.getLogger("pagetierd.disk")

QUIET_S: Final = 60.0


class Grumble:
    """One kind of trouble; comes: a line with a place for the reason; goes: a line, "" for none.

    reason: why things are as they were told last, "" if they are well or it was forgotten.
    """

    def __init__(self, comes: str, goes: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._comes = comes
        self._goes = goes
        self._clock = clock
        self._told_at = float("-inf")
        self._told = False
        self.reason = ""

    def forget(self) -> None:
        """It is not known how it is now. The log goes by what was told."""
        self.reason = ""

    def tell(self, reason: str) -> None:
        """How it is now; "": well."""
        self.reason = reason
        if reason and not self._told and self._clock() - self._told_at >= QUIET_S:
            log.warning(self._comes, reason, extra=event("disk_trouble"))
            self._told, self._told_at = True, self._clock()
        elif self._told and not reason:
            if self._goes:
                log.info("%s", self._goes, extra=event("disk_well"))
            self._told = False
