"""Starts processes in milliseconds: a server that has imported the build with failpoints forks them."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kill_points.instrumented_build import environment

_CHUNK: Final = 1 << 20
_WARMING_S: Final = 60.0


class ForkedProcess:
    """A process of the fork server, with the interface of subprocess.Popen."""

    def __init__(self, fork_client: ForkClient, pid: int) -> None:
        self.pid = pid
        self._nursery = fork_client
        self._pidfd = os.pidfd_open(pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs."""
        if self.returncode is None and _readable(self._pidfd, 0.0):
            self.returncode = self._nursery.code_of(self.pid)
            os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Returns the exit code. Raises subprocess.TimeoutExpired if the process still runs after `timeout` seconds."""
        if self.returncode is None and not _readable(self._pidfd, timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkClient:
    """A fork server and its processes, which are killed at the end of the context.

    Args:
        control: The control file of the failpoints of all processes.
        log: The file for the output of the server.
        mutant: A patch with a bug for the core of these processes.
    """

    def __init__(self, control: Path, log: Path, mutant: Path | None = None) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._codes: dict[int, int] = {}
        self._processes: list[ForkedProcess] = []
        self._all_ended = False
        command = [sys.executable, "-m", "kill_points.fork_server", str(theirs.fileno())]
        with theirs, log.open("ab") as output:
            one = {"OPENBLAS_NUM_THREADS": "1"}  # a fork would not copy the threads of the library
            environ = environment(control, mutant) | one
            self._server = subprocess.Popen(
                command, env=environ, pass_fds=[theirs.fileno()], stdout=output, stderr=output
            )
        self._link.settimeout(_WARMING_S)
        assert self._link.recv(_CHUNK) == b"warm", log.read_text()

    def spawn(self, name: str, arguments: tuple[Any, ...], log: Path, give: tuple[int, ...] = ()) -> ForkedProcess:
        """Calls a function of kill_points.roles in a new process: name(*descriptors of give, *arguments)."""
        request = ("spawn", str(log), "kill_points.roles", name, arguments)
        socket.send_fds(self._link, [pickle.dumps(request)], list(give))
        self._processes.append(ForkedProcess(self, pickle.loads(self._link.recv(_CHUNK))))
        return self._processes[-1]

    def code_of(self, pid: int) -> int:
        """Returns the exit code of a process that has ended."""
        while pid not in self._codes:
            self._poll()
        return self._codes[pid]

    def all_ended(self, seconds: float) -> bool:
        """Returns whether all processes and their descendants have ended within the timeout."""
        ends = time.monotonic() + seconds
        self._poll()
        while not self._all_ended and time.monotonic() < ends:
            time.sleep(0.005)
            self._poll()
        return self._all_ended

    def _poll(self) -> None:
        self._link.send(pickle.dumps(("ended",)))
        reply = pickle.loads(self._link.recv(_CHUNK))
        self._all_ended = not reply.pop(0)
        self._codes |= reply

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._processes:
            one.kill()
        self._link.close()
        self._server.wait(_WARMING_S)


def _readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
