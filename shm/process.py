"""Processes as the kernel tells them apart: a pid and the time at which it was started."""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path

import msgspec

_UNSEEN = (errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM)  # also of one that hidepid hides
_STARTED_FIELD = 22 - 3  # of /proc/PID/stat, counted from the field behind the command's closing bracket


class Process(msgspec.Struct, frozen=True):
    """One process for as long as the host is up: no other ever has the same pid and start time.

    started: clock ticks since boot.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Returns the process that has this pid now.

        Raises ProcessLookupError if this process can see none, OSError if it cannot look: that proves no death.
        """
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()  # the command in it may be no text
        except OSError as error:
            if error.errno not in _UNSEEN:
                raise
            raise ProcessLookupError(f"no process {pid} can be seen from here") from error
        return cls(pid, int(stat.rpartition(b")")[2].split()[_STARTED_FIELD]))

    def watch(self) -> int:
        """Returns a descriptor that becomes readable when the process is gone.

        Raises ProcessLookupError if it is, OSError if this process cannot look.
        """
        descriptor = self._opened()
        try:
            if Process.of(self.pid) != self or _readable(descriptor):
                raise ProcessLookupError(f"process {self.pid} is gone")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _opened(self) -> int:
        """Segments that were damaged may name a thread, or a number that no process can have."""
        try:
            return os.pidfd_open(self.pid)
        except OverflowError as error:
            raise ProcessLookupError(f"{self.pid} is no process") from error
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):
                raise
            raise ProcessLookupError(f"{self.pid} is no process") from error

    def lives(self) -> bool:
        """Whether the process is still there, with all of its threads or some."""
        try:
            os.close(self.watch())
        except ProcessLookupError:
            return False
        return True


def _readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
