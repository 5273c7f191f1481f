"""Forked children of one warm process: what each of them is, how it ended, and whether that was to be expected."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import msgspec

_PR_SET_PDEATHSIG: Final = 1
_PATIENCE_S: Final = 20.0
_PAUSE_S: Final = 0.002

_libc = ctypes.CDLL(None)


class Child(msgspec.Struct):
    """A child and what was done to it. stopped: until when it stands still, CLOCK_MONOTONIC in seconds; 0: it runs.

    status: as waitpid() gave it, None while it lives.
    """

    pid: int
    role: str
    seat: int = 0
    killed: bool = False
    stopped: float = 0.0
    status: int | None = None

    @property
    def lives(self) -> bool:
        """Whether it has not ended yet."""
        return self.status is None

    @property
    def hit(self) -> bool:
        """Whether it has ended of what was done to it, and not by itself a moment before."""
        return self.killed and self.code == -signal.SIGKILL

    @property
    def code(self) -> int | None:
        """Its exit code, or minus the signal that it died of; None while it lives."""
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)


class Family:
    """All children of this process. The caller guarantees that it has one thread.

    folder: where children that raise write down why.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: dict[int, Child] = {}

    def fork(self, role: str, action: Callable[[], object], seat: int = 0) -> Child:
        """A child that does this and ends: 0, or 1 where it raises. It dies with this process."""
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            self._live(parent, role, action)
        child = Child(pid, role, seat)
        self._children[pid] = child
        return child

    def kill(self, child: Child) -> None:
        """SIGKILL; it is gone when reap() says so. Nothing happens to who has ended."""
        if child.lives:
            child.killed = True
            os.kill(child.pid, signal.SIGKILL)

    def signal(self, child: Child, number: signal.Signals) -> None:
        """Any other signal."""
        if child.lives:
            os.kill(child.pid, number)

    def reap(self) -> list[Child]:
        """Those that have ended since the last time."""
        ended = []
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            child = self._children.pop(pid, None)
            if child is not None:
                child.status = status
                ended.append(child)
        return ended

    def wait(self, child: Child, seconds: float = _PATIENCE_S) -> list[Child]:
        """Waits for the end of one, killing it where it takes too long; all that have ended meanwhile."""
        ends, ended = time.monotonic() + seconds, self.reap()
        while child.lives:
            if time.monotonic() > ends:
                self.kill(child)
            time.sleep(_PAUSE_S)
            ended += self.reap()
        return ended

    def last_words(self, child: Child) -> str:
        """What a child wrote down that raised."""
        path = self._folder / f"{child.role}-{child.pid}.traceback"
        return path.read_text() if path.exists() else "nothing was written down"

    def end(self) -> None:
        """Kills all and waits for them."""
        for child in list(self._children.values()):
            self.kill(child)
        while self._children:
            self.reap()
            time.sleep(_PAUSE_S)

    def _live(self, parent: int, role: str, action: Callable[[], object]) -> NoReturn:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        live(self._folder, role, action if os.getppid() == parent else lambda: None)


def live(folder: Path, role: str, action: Callable[[], object]) -> NoReturn:
    """Does this and ends the process: 0, or 1 where it raises, and then it writes down why."""
    code = 1
    try:
        action()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - whatever it is, it is written down and ends the process
        (folder / f"{role}-{os.getpid()}.traceback").write_text(traceback.format_exc())
    finally:
        sys.stdout.flush()
        os._exit(code)
