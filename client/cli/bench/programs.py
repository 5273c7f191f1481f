"""Starts a program in a session of its own, and ends all processes of it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pagetier.client.cli.bench.resident import session_processes
from pagetier.shm import clock
from pagetier.shm.clock import Deadline
from pagetier.shm.exit_codes import Exit

_PAUSE_S: Final = 0.05
_REST_S: Final = 10.0  # for the processes that the program has left, and again for the resource trackers of Python
_TRACKER: Final = b"multiprocessing.resource_tracker"
_LOG_LINES: Final = 12
_ERRORS: Final = 5
# The last line of a traceback, with what vLLM writes before it: the process, and the level, time and place. The cause
# is often that of another process than the one that ends last.
_BEFORE: Final = r"(?:\([^)]*\) )?(?:[A-Z]+ [-\d]+ [:\d]+ \[[^]]*\] )?"
_EXCEPTION: Final = re.compile(_BEFORE + r"([A-Za-z_][\w.]*(?:Error|Exception)\b: .*)")

# If this process is killed, the kernel sends the program the signal by which it stops (prctl 1 is PR_SET_PDEATHSIG),
# which lasts beyond exec. The parent may have ended before that. Processes in the background of a shell ignore SIGINT.
_START: Final = """
import ctypes, os, signal, sys
number, parent, *command = sys.argv[1:]
signal.signal(int(number), signal.SIG_DFL)
ctypes.CDLL(None).prctl(1, int(number))
if os.getppid() == int(parent):
    os.execvp(command[0], command)
"""


def program_path(name: str, remedy: str) -> Path:
    """Returns a program of this Python's environment, or else of PATH.

    Raises:
        BenchmarkError: There is none. The message ends with `remedy`.
    """
    beside = Path(sys.executable).with_name(name)
    if found := beside if beside.exists() else shutil.which(name):
        return Path(found)
    raise BenchmarkError(f"there is no program {name} in {beside.parent} or in PATH: {remedy}", Exit.USAGE)


class BenchmarkError(Exception):
    """The benchmark cannot be run, or did not work. The message says why and what to do.

    Args:
        message: The message.
        code: The exit code.
    """

    def __init__(self, message: str, code: int = Exit.WRONG) -> None:
        super().__init__(message)
        self.code = code


class Program:
    """A running program. As a context manager it ends the program and all processes of its session.

    If this process is killed, the program is asked to stop, and ends the processes that it has started.

    Args:
        command: The program and its arguments.
        environment: The variables of its environment.
        log: The file for its output.
        stop_signal: The signal that asks it to stop.
        stop_timeout: Seconds after which it is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        stop_signal: signal.Signals,
        stop_timeout: float,
    ) -> None:
        self._name, self._log = Path(command[0]).name, log
        self._stop_signal, self._stop_timeout = stop_signal, stop_timeout
        start = [sys.executable, "-ISc", _START, str(stop_signal.value), str(os.getpid()), *command]
        with log.open("wb") as output:
            # A session of its own, so that Ctrl-C reaches it only through stop().
            self._process = subprocess.Popen(
                start, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """Its process ID, which is also that of its session."""
        return self._process.pid

    @property
    def log_text(self) -> str:
        """Its output so far."""
        return self._log.read_text(errors="replace")

    def wait_until(self, ready: Callable[[], bool], timeout: float) -> None:
        """Waits until `ready` returns true.

        Raises:
            BenchmarkError: The program ends before, or the timeout expires.
        """
        deadline = Deadline(timeout)
        while not ready():
            if self._process.poll() is not None:
                raise self.error(f"{self._name} ended with exit code {self._process.returncode}")
            if not deadline.left:
                raise self.error(f"{self._name} was not ready within {timeout:.0f} s")
            clock.sleep(_PAUSE_S)

    def error(self, message: str) -> BenchmarkError:
        """Returns an error with the exceptions in the program's output, its end, and a file that keeps all of it."""
        lines = self.log_text.splitlines()
        raised = dict.fromkeys(found[1] for line in lines if (found := _EXCEPTION.match(line)))
        shown = [("the errors in its output", [*raised][-_ERRORS:]), ("the end of its output", lines[-_LOG_LINES:])]
        parts = (f"{title}:\n" + "\n".join(f"  {line}" for line in part) for title, part in shown if part)
        return BenchmarkError("\n".join([f"{message}; its whole output is in {self._kept_log()}", *parts]))

    def _kept_log(self) -> Path:
        """Returns a copy of the log. The log itself is removed with the benchmark's other files."""
        descriptor, name = tempfile.mkstemp(prefix=f"pagetier-bench-{self._name}-", suffix=".log")
        os.close(descriptor)
        return Path(shutil.copyfile(self._log, name))

    def stop(self) -> bool:
        """Ends the program and what it has started.

        An exception of a signal's handler, such as KeyboardInterrupt, ends the wait for the program, but not more.

        Returns:
            Whether the program ended by itself when it was asked.
        """
        with ExitStack() as steps:
            steps.callback(self._process.wait)
            steps.callback(_signal_group, self.pid, signal.SIGKILL)
            steps.callback(_end_orderly, self.pid)
            return self._ends_when_asked()

    def _ends_when_asked(self) -> bool:
        self._process.send_signal(self._stop_signal)
        try:
            self._process.wait(self._stop_timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _end_orderly(leader: int) -> None:
    """Ends the processes that are left in a session so that their shared memory is removed.

    Python's resource tracker removes the shared memory and the semaphores of the processes that were killed, after the
    last of them. It is not killed here.
    """
    _signal_group(leader, signal.SIGTERM)
    _wait_for_end(leader)
    for pid in session_processes(leader):
        if not _is_tracker(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    _wait_for_end(leader)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, number)


def _wait_for_end(leader: int) -> None:
    deadline = Deadline(_REST_S)
    while session_processes(leader) and not deadline.is_over:
        clock.sleep(_PAUSE_S)


def _is_tracker(pid: int) -> bool:
    try:
        return _TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return False
