"""Who is told when there is no memory for more of an arena that is taken as it is used."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from pagetier.shm._core import Owner
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)

TELL_EVERY_S: Final = 60.0


class Shortage:
    """Looks whether the arena can have no more memory, and tells so when it begins. On the loop's thread only.

    Engines go on: nobody is granted what there is not. An arena that was populated never lacks any.
    """

    def __init__(self, owner: Owner, clock: Callable[[], float] = time.monotonic) -> None:
        self._owner = owner
        self._clock = clock
        self._lacked = False
        self._quiet_until = -TELL_EVERY_S

    def look(self) -> None:
        """Cheap: for a few times a second."""
        before, self._lacked = self._lacked, self._owner.lacks_memory
        if self._lacked and not before and self._clock() >= self._quiet_until:
            self._quiet_until = self._clock() + TELL_EVERY_S
            log.warning(
                "there is no memory for more of the arena: pages leave early and stores are refused until /dev/shm"
                ' has room again; arena.prefault = "populate" takes all of it at the start',
                extra=event("arena_short"),
            )
