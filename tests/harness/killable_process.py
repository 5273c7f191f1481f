"""A process of the test's own that does one thing after another as it is told, and can be killed in between."""

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
    """A forked child. It runs `life(pipe)`; what the pipe's other end is sent and gets is between the two."""

    def __init__(self, life: Callable[[Connection], object]) -> None:
        self._pipe, theirs = Pipe()
        self.pid = spawn(lambda: life(theirs))
        theirs.close()
        self._gone = False

    def tell(self, order: object) -> None:
        """Sends something and does not wait."""
        self._pipe.send(order)

    def told(self) -> Any:
        """What it says next. Raises EOFError if it has died instead."""
        assert self._pipe.poll(_WAIT_S), "a child does not answer"
        return self._pipe.recv()

    def ask(self, order: object) -> Any:
        """Sends something, and waits for what it says to that."""
        self.tell(order)
        return self.told()

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT and the like."""
        os.kill(self.pid, number)

    def kill(self) -> float:
        """SIGKILL, and its end awaited; when that was, on the monotonic clock."""
        if not self._gone:
            self.signal(signal.SIGKILL)
            self.wait()
        return time.monotonic()

    def wait(self) -> int:
        """Its exit code, or minus the signal that it died of."""
        self._gone = True
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        """The end of it, whatever it is doing."""
        with suppress(ProcessLookupError):
            self.kill()
        self._pipe.close()


@contextmanager
def mortal(life: Callable[[Connection], object]) -> Iterator[Mortal]:
    """One that is dead at the end of the block."""
    child = Mortal(life)
    try:
        yield child
    finally:
        child.close()


@contextmanager
def attached(socket: Path, life: Callable[[Client, Connection], object]) -> Iterator[Mortal]:
    """One that is attached when the block begins."""

    def live(pipe: Connection) -> None:
        client = Client(socket)
        pipe.send(client.wait_attached(_WAIT_S))
        life(client, pipe)

    with mortal(live) as child:
        assert child.told(), "a child is not attached"
        yield child
