"""Forks children of one process that has imported everything, and records how each of them ended."""

from __future__ import annotations

import ctypes
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from child_process import run_and_exit
from eventually import eventually

_PR_SET_PDEATHSIG: Final = 1
_PATIENCE_S: Final = 20.0
_LONG_S: Final = 240.0

_libc = ctypes.CDLL(None)


class Child(msgspec.Struct):
    """A child process, and what the test did to it.

    Attributes:
        pid: Its process ID.
        role: Its role in reports.
        seat: The number of its seat.
        killed: Whether the test sent SIGKILL.
        stopped: The time until which it is stopped, CLOCK_MONOTONIC in seconds; 0: it runs.
        status: Its status as returned by waitpid(); None until it has ended.
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
    def killed_by_test(self) -> bool:
        """Whether it died of the test's SIGKILL, and did not end by itself a moment before."""
        return self.killed and self.code == -signal.SIGKILL

    @property
    def code(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it; None until it has ended."""
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)


class ChildProcesses:
    """All children of this process. The caller guarantees that this process has one thread.

    `folder` is where children write their tracebacks.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: dict[int, Child] = {}

    def fork(self, role: str, action: Callable[[], object], seat: int = 0) -> Child:
        """Returns a new child that runs the action and exits with 0, or 1 if it raises.

        It is killed when this process ends.
        """
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            self._live(parent, role, action)
        child = Child(pid, role, seat)
        self._children[pid] = child
        return child

    def kill(self, child: Child) -> None:
        """Sends SIGKILL, unless the child has ended; reap() reports its end."""
        if child.lives:
            child.killed = True
            os.kill(child.pid, signal.SIGKILL)

    def signal(self, child: Child, number: signal.Signals) -> None:
        """Sends another signal, unless the child has ended."""
        if child.lives:
            os.kill(child.pid, number)

    def reap(self) -> list[Child]:
        """Returns the children that have ended since the last call."""
        ended = []
        for child in list(self._children.values()):  # one by one: this process may have other children
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                child.status = status
                del self._children[pid]
                ended.append(child)
        return ended

    def wait(self, child: Child, seconds: float = _PATIENCE_S) -> list[Child]:
        """Waits until a child ends, kills it after the timeout, and returns all children that ended during the wait."""
        ended: list[Child] = []

        def is_over() -> bool:
            ended.extend(self.reap())
            return not child.lives

        if not eventually(is_over, seconds):
            self.kill(child)
            eventually(is_over)
        return ended

    def compute(self, role: str, action: Callable[[], object]) -> Child:
        """Returns a new child that computes something; the memory that it uses for that is not this process's."""

        def live() -> None:
            self._result_of(os.getpid()).write_bytes(msgspec.json.encode(action()))

        return self.fork(role, live)

    def computed(self, child: Child) -> bytes:
        """Returns the JSON of what an ended child computed. Raises RuntimeError if it failed."""
        if child.code != 0:
            raise RuntimeError(f"the {child.role} ended with {child.code}: {self.last_output(child)}")
        return self._result_of(child.pid).read_bytes()

    def result(self, role: str, action: Callable[[], object]) -> bytes:
        """Returns what a child computes, in some minutes. Raises RuntimeError if it fails."""
        child = self.compute(role, action)
        self.wait(child, _LONG_S)
        return self.computed(child)

    def last_output(self, child: Child) -> str:
        """Returns the traceback of a child that raised."""
        path = _traceback(self._folder, child.role, child.pid)
        return path.read_text() if path.exists() else "no traceback was written"

    def end(self) -> None:
        """Kills all children and waits for them."""
        for child in list(self._children.values()):
            self.kill(child)
        while self._children:
            self.wait(next(iter(self._children.values())))

    def _result_of(self, pid: int) -> Path:
        return self._folder / f"{pid}.result"

    def _live(self, parent: int, role: str, action: Callable[[], object]) -> NoReturn:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        play(self._folder, role, action if os.getppid() == parent else lambda: None)


def play(folder: Path, role: str, action: Callable[[], object]) -> NoReturn:
    """Runs the action and exits with 0, or writes a traceback and exits with 1 if it raises."""
    run_and_exit(action, lambda: _traceback(folder, role, os.getpid()).write_text(traceback.format_exc()))


def _traceback(folder: Path, role: str, pid: int) -> Path:
    return folder / f"{role}-{pid}.traceback"
