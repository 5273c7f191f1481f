"""How many connections there may be: one process that opens them without end leaves room for the others."""

from __future__ import annotations

import resource
from collections import Counter
from typing import Final

from .peers import Caller

MOST_OF_PROCESS: Final = 128
MOST_SILENT: Final = 64
_MOST: Final = 1024
# Descriptors of the daemon's own (segments, pidfds, the disk's worker, metrics), and of those who are turned away: the
# loop takes 128 at once out of the queue, and has closed them two turns later.
_KEPT: Final = 640


class Gate:
    """Counts connections: all, those of each process, and those of each user that have not said yet who they are.

    most: of all; by default what the limit on open files leaves room for.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = _as_many_as_fit() if most is None else most
        self._of_process: Counter[int] = Counter()
        self._silent: Counter[int] = Counter()

    def enter(self, caller: Caller) -> str:
        """Counts a new connection; why it may not be, and is not counted, or ""."""
        why = self._why_not(caller)
        if not why:
            self._of_process[caller.pid] += 1
            self._silent[caller.uid] += 1
        return why

    def greeted(self, caller: Caller) -> None:
        """One that entered has said who it is, or will not say it any more."""
        self._silent[caller.uid] -= 1
        self._silent += Counter()  # forgets who has none

    def leave(self, caller: Caller) -> None:
        """One that entered, and greeted, is closed."""
        self._of_process[caller.pid] -= 1
        self._of_process += Counter()

    def _why_not(self, caller: Caller) -> str:
        if self._silent[caller.uid] >= MOST_SILENT:
            return f"{MOST_SILENT} connections of this user have not said yet who they are"
        if self._of_process[caller.pid] >= MOST_OF_PROCESS:
            return f"this process has {MOST_OF_PROCESS} connections"
        if self._of_process.total() >= self._most:
            return f"there are {self._most} connections"
        return ""


def _as_many_as_fit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(MOST_SILENT, min(_MOST, soft - _KEPT))
