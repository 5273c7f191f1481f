"""How many connections there may be: one process that opens them without end leaves room for the others."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeAlias

from .peers import Caller

End: TypeAlias = Callable[[str], None]
MOST_OF_PROCESS: Final = 256
MOST_SILENT: Final = 64
_MOST: Final = 1024
# Descriptors of the daemon's own (segments, pidfds, the disk's worker, metrics), and of those who are turned away: the
# loop takes 128 at once out of the queue, and has closed them two turns later.
_KEPT: Final = 640


class Gate:
    """Counts connections: all, those of each process, and those of each user that have not said yet who they are.

    Of the last ones who has been silent longest has to go where there are too many. most: of all; by default what the
    limit on open files leaves room for.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = _as_many_as_fit() if most is None else most
        self._of_process: Counter[int] = Counter()
        self._silent: dict[int, dict[End, None]] = {}

    def enter(self, caller: Caller, end: End) -> str:
        """Counts a new connection, which `end` ends; why it may not be, and is not counted, or ""."""
        why = self._why_not(caller)
        if not why:
            self._of_process[caller.pid] += 1
            silent = self._silent.setdefault(caller.uid, {})
            silent[end] = None
            if len(silent) > MOST_SILENT:
                oldest = next(iter(silent))
                del silent[oldest]
                oldest(f"{MOST_SILENT} others of this user have not said either who they are")
        return why

    def greeted(self, caller: Caller, end: End) -> None:
        """One that entered has said who it is, or will not say it any more. May be told again."""
        silent = self._silent.get(caller.uid, {})
        silent.pop(end, None)
        if not silent:
            self._silent.pop(caller.uid, None)

    def leave(self, caller: Caller) -> None:
        """One that entered, and greeted, is closed."""
        self._of_process[caller.pid] -= 1
        self._of_process += Counter()  # forgets who has none

    def _why_not(self, caller: Caller) -> str:
        if self._of_process[caller.pid] >= MOST_OF_PROCESS:
            return f"this process has {MOST_OF_PROCESS} connections"
        if self._of_process.total() >= self._most:
            return f"there are {self._most} connections"
        return ""


def _as_many_as_fit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(MOST_SILENT, min(_MOST, soft - _KEPT))
