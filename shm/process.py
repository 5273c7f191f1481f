"""Processes as the kernel identifies them: a PID and a start time."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
from pathlib import Path
from typing import Final

import msgspec

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_UNSEEN = (errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM)  # also for a process that hidepid hides
_STARTED_FIELD = 22 - 3  # in /proc/PID/stat, counted from the field after the command's closing bracket


class Process(msgspec.Struct, frozen=True):
    """One process: no other process has the same PID and start time while the host is up.

    Attributes:
        pid: The process ID.
        started: Clock ticks since boot.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Returns the process that has this PID now.

        Raises:
            ProcessLookupError: This process can see no such process.
            OSError: /proc cannot be read; this does not prove that the process ended.
        """
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()  # the command in it may be arbitrary bytes
        except OSError as error:
            if error.errno not in _UNSEEN:
                raise
            raise ProcessLookupError(f"no process {pid} can be seen from here") from error
        return cls(pid, int(stat.rpartition(b")")[2].split()[_STARTED_FIELD]))

    def watch(self) -> int:
        """Returns a descriptor that becomes readable when the process ends.

        Raises OSError if this process cannot watch it.

        Raises:
            ProcessLookupError: The process has ended.
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
        """Returns a pidfd. Corrupt segments may contain the ID of a thread, or a number that is no valid PID."""
        try:
            return os.pidfd_open(self.pid)
        except OverflowError as error:
            raise ProcessLookupError(f"{self.pid} is no process") from error
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):
                raise
            raise ProcessLookupError(f"{self.pid} is no process") from error

    def lives(self) -> bool:
        """Returns whether the process exists, even if only some of its threads are left."""
        try:
            os.close(self.watch())
        except ProcessLookupError:
            return False
        return True


def _readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def be_child(name: bytes, nice: int) -> None:
    """Lets this process end with the daemon that started it, and ignore signals that are meant for the daemon.

    A terminal or a service manager may send these to all processes of the service.

    Args:
        name: The name that `ps` shows, at most 15 bytes.
        nice: How much other processes are preferred.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_NAME, name)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    os.nice(nice)
