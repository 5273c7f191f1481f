"""Reaps processes that the kernel gives to a daemon that is PID 1 of a container, when their parents have ended."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pagetier.shm.process import Process

_INIT = 1


class Orphans:
    """The ended processes of a PID 1 that it has not started itself.

    The event loop is woken by the end of each process that the daemon has started, and reaps it at once. So one that
    was a zombie at the previous call already was started by another process.
    """

    def __init__(self) -> None:
        self._zombies = frozenset[Process]()

    def reap(self) -> None:
        """Reaps orphans. To be called by the event loop about once a second; without any it costs one system call."""
        if os.getpid() != _INIT:
            return
        try:
            zombies = _zombies() if _has_zombie() else frozenset()
        except OSError:  # descriptors are short: a later call finds them
            return
        for orphan in zombies & self._zombies:
            with suppress(ChildProcessError):
                os.waitpid(orphan.pid, os.WNOHANG)
        self._zombies = zombies


def _has_zombie() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _zombies() -> frozenset[Process]:
    """Returns the children of this process that have ended."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and _is_zombie_of(folder, os.getpid()):
            with suppress(ProcessLookupError):
                found.add(Process.of(int(folder.name)))
    return frozenset(found)


def _is_zombie_of(folder: Path, parent: int) -> bool:
    """Returns whether the process of a folder in /proc has ended and is a child of `parent`."""
    try:
        state, found = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:2]
    except OSError:  # it has just been reaped
        return False
    return state == b"Z" and int(found) == parent
