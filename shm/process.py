"""Processes as the kernel identifies them: by the inode of a pidfd, on older kernels by a PID and a start time."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import threading
from pathlib import Path
from typing import Final

import msgspec

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_NICE: Final = 10
_UNSEEN = (errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM)  # also for a process that hidepid hides
_STARTED_FIELD = 22 - 3  # in /proc/PID/stat, counted from the field after the command's closing bracket
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
UNSEEN: Final = "its process lives in a PID namespace that cannot be seen from here: Linux 6.9 or newer is needed"


class Process(msgspec.Struct, frozen=True):
    """One process.

    Attributes:
        pid: The process ID in the PID namespace of this process; 0 if it has none there.
        started: Clock ticks since boot; 0 if kernel_id names the process.
        kernel_id: The same in all namespaces, and never used twice while the host is up. 0 before Linux 6.9: there no
            other process that this PID namespace shows has the same PID and start time.
    """

    pid: int
    started: int
    kernel_id: int = 0

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

    @classmethod
    def of_pidfd(cls, pid: int, pidfd: int) -> Process:
        """Returns the process of a pidfd. /proc is read only before Linux 6.9.

        Args:
            pid: Its process ID, 0 if the PID namespace of this process does not show it.
            pidfd: The pidfd, which stays open.

        Raises:
            ProcessLookupError: This kernel cannot identify a process that this process cannot see.
        """
        kernel_id = kernel_id_of(pidfd)
        if kernel_id:
            return cls(pid, 0, kernel_id)
        if not pid:
            raise ProcessLookupError(UNSEEN)
        return cls.of(pid)

    def same(self, other: Process) -> bool:
        """Returns whether both are the same process, whatever PID each namespace gives it."""
        if self.kernel_id or other.kernel_id:
            return self.kernel_id == other.kernel_id
        return self == other

    def watch(self) -> int:
        """Returns a descriptor that becomes readable when the process ends.

        Raises OSError if this process cannot watch it.

        Raises:
            ProcessLookupError: The process has ended.
        """
        descriptor = self._opened()
        try:
            if Process.of(self.pid) != self or has_ended(descriptor):
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


def has_ended(pidfd: int) -> bool:
    """Returns whether the kernel says that the process of a pidfd has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def kernel_id_of(pidfd: int) -> int:
    """Returns the inode of a pidfd; 0 before Linux 6.9, where all pidfds share that of all anonymous files."""
    with select.epoll() as anonymous:
        shared = os.fstat(anonymous.fileno())
    own = os.fstat(pidfd)
    return 0 if own.st_dev == shared.st_dev else own.st_ino


def reopen_pidfd(pid: int, kernel_id: int) -> int | None:
    """Returns a pidfd of a process that is known by its kernel ID.

    None proves nothing: the process may have ended, have another PID here, or be invisible from here.

    Raises:
        OSError: Descriptors or memory are short.
    """
    if not kernel_id:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise
        return None
    except OverflowError:  # damaged segments may contain any number
        return None
    try:
        same = kernel_id_of(pidfd) == kernel_id
    except BaseException:
        os.close(pidfd)
        raise
    if same:
        return pidfd
    os.close(pidfd)
    return None


def die_with_parent() -> None:
    """Lets the kernel kill this process when its parent ends. A parent that has ended already does not count."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def be_child(name: bytes) -> None:
    """Lets this process end with the daemon that started it, and ignore signals that are meant for the daemon.

    A terminal or a service manager may send these to all processes of the service.

    Args:
        name: The name that `ps` shows, at most 15 bytes.
    """
    die_with_parent()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def lower_priority() -> None:
    """Lets the kernel prefer other threads and processes to this thread and those that it starts.

    A thread of a lower priority keeps it: without CAP_SYS_NICE the kernel refuses to raise it.
    """
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(_NICE, os.getpriority(os.PRIO_PROCESS, thread)))
