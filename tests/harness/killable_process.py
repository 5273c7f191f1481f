"""A child process that executes commands one by one and can be killed between or during them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from forked_child import spawn
from pagetier.client import Client

_WAIT_S = 20.0


class Mortal:
    """A forked child that runs `life(pipe)`. Commands and results are sent through the pipe."""

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
        assert self._pipe.poll(_WAIT_S), "a child does not answer"
        return self._pipe.recv()

    def ask(self, command: object) -> Any:
        """Sends a command and returns its result."""
        self.send(command)
        return self.reported()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal such as SIGSTOP or SIGCONT."""
        os.kill(self.pid, number)

    def kill(self) -> float:
        """Kills the child with SIGKILL, waits for its end, and returns its time on the monotonic clock."""
        if not self._gone:
            self.signal(signal.SIGKILL)
            self.wait()
        return time.monotonic()

    def wait(self) -> int:
        """Waits for the child. Returns its exit code, or minus the signal that ended it."""
        self._gone = True
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        """Kills the child, whatever its state is."""
        with suppress(ProcessLookupError):
            self.kill()
        self._pipe.close()


@contextmanager
def mortal(life: Callable[[Connection], object]) -> Iterator[Mortal]:
    """Yields a child that is killed at the end of the block."""
    child = Mortal(life)
    try:
        yield child
    finally:
        child.close()


@contextmanager
def attached(socket: Path, life: Callable[[Client, Connection], object]) -> Iterator[Mortal]:
    """Yields a child that is attached to the daemon."""

    def live(pipe: Connection) -> None:
        client = Client(socket)
        pipe.send(client.wait_attached(_WAIT_S))
        life(client, pipe)

    with mortal(live) as child:
        assert child.reported(), "a child is not attached"
        yield child
