"""Starts processes in milliseconds: a server that has imported everything forks them."""

from __future__ import annotations

import math
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from eventually import PATIENCE_S, eventually

ROLES: Final = "injection.roles"
_CHUNK: Final = 1 << 20


class ForkedProcess:
    """A process of the fork server, with the interface of subprocess.Popen."""

    def __init__(self, fork_client: ForkClient, pid: int) -> None:
        self.pid = pid
        self._client = fork_client
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs. The pid is not used again before that."""
        if self.returncode is None:
            self.returncode = self._client.codes().get(self.pid)
        return self.returncode

    def wait(self, timeout: float = math.inf) -> int:
        """Returns the exit code. Raises subprocess.TimeoutExpired if the process still runs after `timeout` seconds."""
        if not eventually(lambda: self.poll() is not None, timeout) or self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkClient:
    """A fork server and its processes, which are killed at the end of the context.

    Args:
        log: The file for the output of the server.
        environ: The environment of all processes.
    """

    def __init__(self, log: Path, environ: Mapping[str, str]) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._codes: dict[int, int] = {}
        self._processes: list[ForkedProcess] = []
        self._some_run = True
        command = [sys.executable, "-m", "injection.fork_server", str(theirs.fileno())]
        one = {"OPENBLAS_NUM_THREADS": "1"}  # a fork would not copy the threads of the library
        with theirs, log.open("ab") as output:
            self._server = subprocess.Popen(
                command, env={**environ, **one}, pass_fds=[theirs.fileno()], stdout=output, stderr=output
            )
        self._link.settimeout(PATIENCE_S)
        assert self._link.recv(_CHUNK) == b"warm", log.read_text()

    def spawn(
        self, name: str, arguments: tuple[Any, ...], log: Path, give: tuple[int, ...] = (), module: str = ROLES
    ) -> ForkedProcess:
        """Calls a function of a module in a new process: name(*descriptors of give, *arguments)."""
        pid = self._ask((str(log), module, name, arguments), give)
        self._codes.pop(pid, None)  # of an earlier process with this pid
        self._processes.append(ForkedProcess(self, pid))
        return self._processes[-1]

    def codes(self) -> dict[int, int]:
        """Returns the exit codes of all processes that have ended, by their pids."""
        self._some_run, ended = self._ask(None)
        self._codes |= ended
        return self._codes

    def all_ended(self) -> bool:
        """Waits until all processes and their descendants have ended; returns False if one does not."""

        def none_runs() -> bool:
            self.codes()
            return not self._some_run

        return eventually(none_runs)

    def _ask(self, request: Any, give: tuple[int, ...] = ()) -> Any:
        socket.send_fds(self._link, [pickle.dumps(request)], list(give))
        return pickle.loads(self._link.recv(_CHUNK))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._processes:
            one.kill()
        self._link.close()
        self._server.wait(PATIENCE_S)
