"""Limits the number of connections, so that one process cannot use up those of all others."""

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
MOST_UNFINISHED: Final = 4 * REQUEST_LIMIT  # bytes: sessions of one process may send large requests at the same time
_MOST: Final = 1024
# Descriptors for other purposes: segments, pidfds, the disk worker and metrics; and for refused connections, of which
# the loop accepts 128 at once and closes them two iterations later.
_KEPT: Final = 640


class ConnectionLimits:
    """Counts connections: all of them, those of each process, and those of each user that have not sent a greeting yet.

    A user with too many connections without a greeting loses the oldest of these. Half of all connections are reserved
    for users who may attach. Each other user has a limit of its own. `most` is the limit for all connections; by
    default it follows from the limit of open files.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = _as_many_as_fit() if most is None else most
        self._of_process: Counter[tuple[int, int]] = Counter()
        self._silent: dict[int, dict[End, None]] = {}
        self._watching: dict[End, int] = {}
        self._unfinished: dict[End, int] = {}
        self._unfinished_of_process: Counter[tuple[int, int]] = Counter()

    def enter(self, caller: Caller, rights: Rights, end: End) -> str:
        """Counts a new connection, which `end` closes. Returns why it is refused and not counted, or ""."""
        watches = rights < Rights.ATTACH
        why = self._rejection(caller) or (self._watcher_rejection(caller.uid) if watches else "")
        if not why:
            self._of_process[caller.process] += 1
            if watches:
                self._watching[end] = caller.uid
            silent = self._silent.setdefault(caller.uid, {})
            silent[end] = None
            if len(silent) > MOST_SILENT:
                oldest = next(iter(silent))
                del silent[oldest]
                oldest(f"{MOST_SILENT} newer connections of this user have not sent a greeting either")
        return why

    def greeted(self, caller: Caller, end: End) -> None:
        """Stops counting a connection as one without a greeting. May be called again."""
        silent = self._silent.get(caller.uid, {})
        silent.pop(end, None)
        if not silent:
            self._silent.pop(caller.uid, None)

    def count_incomplete(self, caller: Caller, end: End, nbytes: int) -> str:
        """Counts the bytes of an incomplete message.

        Returns:
            Why the connection must be closed and the bytes dropped; "" if the limit is not exceeded.
        """
        others = self._unfinished_of_process[caller.process] - self._unfinished.pop(end, 0)
        why = ""
        if others + nbytes > MOST_UNFINISHED:
            why = f"this process has sent {others + nbytes} bytes of incomplete messages"
            nbytes = 0
        self._unfinished_of_process[caller.process] = others + nbytes
        if nbytes:
            self._unfinished[end] = nbytes
        return why

    def leave(self, caller: Caller, end: End) -> None:
        """Stops counting a connection, which is closed and no longer waits for a greeting."""
        self.count_incomplete(caller, end, 0)
        self._watching.pop(end, None)
        self._of_process[caller.process] -= 1
        if not self._of_process[caller.process]:
            del self._of_process[caller.process], self._unfinished_of_process[caller.process]

    def _rejection(self, caller: Caller) -> str:
        if self._of_process[caller.process] >= MOST_OF_PROCESS:
            return f"this process has {MOST_OF_PROCESS} connections, the most for one process"
        if self._of_process.total() >= self._most:
            return f"there are {self._most} connections, the most for this daemon"
        return ""

    def _watcher_rejection(self, uid: int) -> str:
        if len(self._watching) >= self._most // 2:
            return f"users who may not attach have {self._most // 2} connections"
        if list(self._watching.values()).count(uid) >= MOST_WATCHING:
            return f"user {uid} may not attach and has {MOST_WATCHING} connections"
        return ""


def _as_many_as_fit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(MOST_SILENT, min(_MOST, soft - _KEPT))
