"""What the daemon looks after about once a second, beside its requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pagetier.daemon.common import loop_clock
from pagetier.shm.log_format import event
from pagetier.shm.segments import Segments

log = logging.getLogger("pagetierd")

_EVERY_S: Final = 1.0


class Upkeep:
    """Steps that are due once a second. On the loop's thread only."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = list(steps)
        self._due = 0.0

    def add(self, step: Callable[[], object]) -> None:
        """Adds a step."""
        self._steps.append(step)

    def run_when_due(self) -> None:
        """Runs all steps if a second has passed. To be called more often than that."""
        now = loop_clock.now()
        if now < self._due:
            return
        self._due = now + _EVERY_S
        for step in self._steps:
            step()


class RemovedSegments:
    """Notices that another process has removed a segment: no later daemon finds the pages in memory then."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._logged = False

    def check(self) -> bool:
        """Returns whether a segment was removed, and logs it once."""
        removed = self._segments.removed()
        if removed and not self._logged:
            text = (
                "%s was removed by another process: engines cannot attach, and the pages in memory end with this daemon"
            )
            log.error(text, removed[0], extra=event("segments_removed", files=" ".join(removed)))
            self._logged = True
        return bool(removed)
