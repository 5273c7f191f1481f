"""Forked child processes: for one action, for commands through a pipe, and killed when and where the test decides."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, Self

from eventually import PATIENCE_S
from pagetier.client import Client

DIED = 77


def run_and_exit(action: Callable[[], object], report: Callable[[], object] = traceback.print_exc) -> NoReturn:
    """Runs an action and ends this process: with 0, the code of a SystemExit, or 1 after a report of an error."""
    code = 1
    try:
        action()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - any exception ends the process
        report()
    finally:
        sys.setprofile(None)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def in_child(action: Callable[[], object]) -> int:
    """Runs an action in a forked child.

    Returns:
        Its exit code (1: it raised), or minus the number of the signal that ended it.
    """
    return _end_of(_fork(action))


def spawn(action: Callable[[], object]) -> int:
    """Forks a child that runs an action, and returns its PID after it has begun."""
    begun, begin = os.pipe()
    child = _fork(lambda: (os.write(begin, b"!"), action()))
    os.read(begun, 1)
    os.close(begun)
    os.close(begin)
    return child


def kill(child: int) -> None:
    """Kills a child with SIGKILL and waits for its end."""
    os.kill(child, signal.SIGKILL)
    assert _end_of(child) == -signal.SIGKILL, "the child had already ended"


def deaths(action: Callable[[], object], before: Callable[[], object] = lambda: None) -> Iterator[int]:
    """Yields each step at which the action can die, after a child has died there. A step is a call into C."""
    for step in range(1, 10_000):
        before()
        if not _dies_at(step, action):
            assert step > 10, "too few steps were traced"
            return
        yield step


class ChildProcess:
    """A forked child that runs `life(pipe)`. Commands and results are sent through the pipe.

    As a context manager it is killed at the end.
    """

    def __init__(self, life: Callable[[Connection], object]) -> None:
        self._pipe, theirs = Pipe()
        self.pid = spawn(lambda: life(theirs))
        theirs.close()
        self._gone = False

    def send(self, command: object) -> None:
        """Sends a command without waiting."""
        self._pipe.send(command)

    def reported(self) -> Any:
        """Returns the next result. Raises EOFError if the child has died."""
        assert self._pipe.poll(PATIENCE_S), "a child does not answer"
        return self._pipe.recv()

    def ask(self, command: object) -> Any:
        """Sends a command and returns its result."""
        self.send(command)
        return self.reported()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal such as SIGSTOP or SIGCONT."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the child with SIGKILL and waits for its end."""
        if not self._gone:
            self.signal(signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        """Waits for the child. Returns its exit code, or minus the signal that ended it."""
        self._gone = True
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        """Kills the child, whatever its state is."""
        with suppress(ProcessLookupError):
            self.kill()
        self._pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def all_answers(children: Sequence[ChildProcess], command: object) -> list[Any]:
    """Returns the result of each child for one command, which they run at the same time."""
    for child in children:
        child.send(command)
    return [child.reported() for child in children]


@contextmanager
def attached(socket: Path, life: Callable[[Client, Connection], object]) -> Iterator[ChildProcess]:
    """Yields a child that is attached to the daemon."""

    def live(pipe: Connection) -> None:
        client = Client(socket, timeout=PATIENCE_S)
        pipe.send(client.wait_attached(PATIENCE_S))
        life(client, pipe)

    with ChildProcess(live) as child:
        assert child.reported(), "a child is not attached"
        yield child


def _dies_at(step: int, action: Callable[[], object]) -> bool:
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "c_call"
        if calls == step:
            os._exit(DIED)

    def counted() -> None:
        sys.setprofile(count)
        action()

    code = in_child(counted)
    assert code in (0, DIED), f"step {step} ended with {code}"
    return code == DIED


def _fork(action: Callable[[], object]) -> int:
    child = os.fork()
    if not child:
        run_and_exit(action)
    return child


def _end_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
