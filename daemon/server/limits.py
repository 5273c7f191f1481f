"""How many connections there may be: one process that opens them without end leaves room for the others."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeAlias

from pagetier.daemon.host.peer_credentials import Caller, Rights
from pagetier.shm.protocol import REQUEST_LIMIT

End: TypeAlias = Callable[[str], None]
MOST_OF_PROCESS: Final = 256
MOST_SILENT: Final = 64
MOST_WATCHING: Final = 128
MOST_UNFINISHED: Final = 4 * REQUEST_LIMIT  # bytes; sessions of one process may ask for much at the same time
_MOST: Final = 1024
# Descriptors of the daemon's own (segments, pidfds, the disk's worker, metrics), and of those who are turned away: the
# loop takes 128 at once out of the queue, and has closed them two turns later.
_KEPT: Final = 640


class ConnectionLimits:
    """Counts connections: all, those of each process, and those of each user that have not said yet who they are.

    Of the last ones who has been silent longest has to go where there are too many. Half of the places are for those
    alone who may attach, and each user who may not has a bound of his own. most: of all; by default what the limit on
    open files leaves room for.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = _as_many_as_fit() if most is None else most
        self._of_process: Counter[int] = Counter()
        self._silent: dict[int, dict[End, None]] = {}
        self._watching: dict[End, int] = {}
        self._unfinished: dict[End, int] = {}
        self._unfinished_of_process: Counter[int] = Counter()

    def enter(self, caller: Caller, rights: Rights, end: End) -> str:
        """Counts a new connection, which `end` ends; why it may not be, and is not counted, or ""."""
        watches = rights < Rights.USE
        why = self._why_not(caller) or (self._why_not_watch(caller.uid) if watches else "")
        if not why:
            self._of_process[caller.pid] += 1
            if watches:
                self._watching[end] = caller.uid
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

    def hold(self, caller: Caller, end: End, nbytes: int) -> str:
        """One that entered has sent so much that is no whole message yet; why it has to go and forget it, or ""."""
        others = self._unfinished_of_process[caller.pid] - self._unfinished.pop(end, 0)
        why = ""
        if others + nbytes > MOST_UNFINISHED:
            why = f"this process has sent {others + nbytes} bytes of messages that are not whole"
            nbytes = 0
        self._unfinished_of_process[caller.pid] = others + nbytes
        if nbytes:
            self._unfinished[end] = nbytes
        return why

    def leave(self, caller: Caller, end: End) -> None:
        """One that entered, and greeted, is closed."""
        self.hold(caller, end, 0)
        self._watching.pop(end, None)
        self._of_process[caller.pid] -= 1
        if not self._of_process[caller.pid]:
            del self._of_process[caller.pid], self._unfinished_of_process[caller.pid]

    def _why_not(self, caller: Caller) -> str:
        if self._of_process[caller.pid] >= MOST_OF_PROCESS:
            return f"this process has {MOST_OF_PROCESS} connections"
        if self._of_process.total() >= self._most:
            return f"there are {self._most} connections"
        return ""

    def _why_not_watch(self, uid: int) -> str:
        if len(self._watching) >= self._most // 2:
            return f"those who may not attach have {self._most // 2} connections"
        if list(self._watching.values()).count(uid) >= MOST_WATCHING:
            return f"user {uid} may not attach, and has {MOST_WATCHING} connections"
        return ""


def _as_many_as_fit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(MOST_SILENT, min(_MOST, soft - _KEPT))
