"""Where workers come from: the daemon starts a child, or a process of a service of its own connects to a socket.

Both give the supervisor the same three things, by which it follows a worker's life without asking the worker: a socket
for commands and reports, the process, and a pidfd, which is readable as soon as the process has ended. The pidfd is
opened before anything is sent, so that a process number that is used again is never taken for the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from pagetier.daemon.config.schema import AccessOptions
from pagetier.daemon.host.listening_socket import BoundSocket, SocketError
from pagetier.daemon.host.peer_credentials import Peer, Rights, peer_of, rights_of
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.process import Process

log = logging.getLogger("pagetierd.workers")

# The process keeps the memory that LMDB allocates for a transaction: releasing and allocating it again costs more than
# the copying. One malloc arena keeps it once instead of once for each thread. glibc reads these variables when the
# process starts.
_KEPT: Final = str(4 << 30)
_ALLOCATOR: Final = {"MALLOC_MMAP_THRESHOLD_": _KEPT, "MALLOC_TRIM_THRESHOLD_": _KEPT, "MALLOC_ARENA_MAX": "1"}
_ABSENT_S: Final = 10.0
_RESTORE_S: Final = 1.0  # between two checks whether the socket was removed
_MODE: Final = 0o600


class WorkerLink(Protocol):
    """A worker process and the socket to it.

    Attributes:
        socket: The daemon's end.
        process: The process.
        pidfd: Readable when the process has ended.
    """

    socket: socket.socket
    process: Process
    pidfd: int

    def kill(self) -> None:
        """Kills the process."""

    def reap(self) -> int | None:
        """Returns the exit code of a process that has ended, None if it is unknown."""


class WorkerSource(Protocol):
    """Provides one worker after the other."""

    async def next(self) -> WorkerLink:
        """Returns the next worker. Raises OSError."""

    def close(self) -> None:
        """Provides no more workers."""


class ChildLink:
    """A child of the daemon with this environment, connected by a socket pair. Raises OSError if it cannot start."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        # A step that fails undoes the earlier ones: no child is left without a supervisor, and none is left a zombie.
        with contextlib.ExitStack() as undo:
            self.socket, theirs = socket.socketpair()
            undo.callback(self.socket.close)
            with theirs:  # the daemon keeps no copy of the child's end: when the child closes it, the daemon notices
                self._child = _start(theirs, environ)
                point("disk.started")
            undo.callback(self._child.wait)
            undo.callback(self._child.kill)
            self.pidfd = os.pidfd_open(self._child.pid)
            undo.callback(os.close, self.pidfd)
            self.process = Process.of_pidfd(self._child.pid, self.pidfd)
            undo.pop_all()

    def kill(self) -> None:
        """Kills the child."""
        self._child.kill()

    def reap(self) -> int | None:
        """Waits for the child, which has ended."""
        return self._child.wait()

    def discard(self) -> None:
        """Ends a child that nothing was sent to, and releases the link."""
        self.kill()
        self._child.wait()
        self.socket.close()
        os.close(self.pidfd)


def _start(theirs: socket.socket, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pagetier.tiers.worker", str(theirs.fileno())]
    return subprocess.Popen(
        command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**environ, **_ALLOCATOR}
    )


class ChildWorkers:
    """Starts each worker as a child with this environment. Several supervisors may share it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._ahead: list[ChildLink] = []

    def start_ahead(self, count: int) -> None:
        """Starts the next workers now: they import their modules until next() returns them, and access nothing."""
        with contextlib.suppress(OSError):  # next() tries again, and its caller reports why it fails
            for _ in range(count):
                self._ahead.append(ChildLink(self._environ))

    def take_over(self, other: ChildWorkers) -> None:
        """Takes the workers that another one has started ahead."""
        self._ahead, other._ahead = other._ahead, []

    async def next(self) -> WorkerLink:
        """Returns a worker that was started ahead, or starts one."""
        return self._ahead.pop() if self._ahead else ChildLink(self._environ)

    def close(self) -> None:
        """Ends the workers that were started ahead and are not used."""
        while self._ahead:
            self._ahead.pop().discard()


class PeerLink:
    """A process that connected to the daemon."""

    def __init__(self, connection: socket.socket, peer: Peer) -> None:
        self.socket = connection
        self.process = peer.process
        self.pidfd = peer.pidfd

    def kill(self) -> None:
        """Kills the process. One of another user is left alone; it ends with its connection."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def reap(self) -> int | None:
        """Returns None: only a parent learns the exit code."""
        return None


class PeerWorkers:
    """Takes workers that connect to a socket, one at a time; others wait in its queue. On the loop's thread only.

    A worker has the daemon's user or is root: it gets the whole arena.

    Args:
        path: The socket, which is opened when the first worker is wanted.
        absent: Called with what to do if no worker has come for ten seconds.
    """

    def __init__(self, path: Path, absent: Callable[[str], None]) -> None:
        self._path = path
        self._absent = absent
        self._bound: BoundSocket | None = None

    async def next(self) -> WorkerLink:
        """Waits for the next worker, for any time. Raises OSError."""
        loop = asyncio.get_running_loop()
        bound = self._bound = self._bound or self._open()
        absence = loop.call_later(
            _ABSENT_S, self._absent, f"no worker came to {self._path}: start pagetierd-remote.service"
        )
        # The socket's file may be removed while the daemon waits. It is restored, or no worker could connect any more.
        try:
            while True:
                if (before := bound.restore()) is not None:
                    before.close()
                bound.listener.settimeout(0.0)
                with contextlib.suppress(TimeoutError):
                    connection, _ = await asyncio.wait_for(loop.sock_accept(bound.listener), _RESTORE_S)
                    if (link := _accepted(connection)) is not None:
                        return link
        finally:
            absence.cancel()

    def _open(self) -> BoundSocket:
        try:
            return BoundSocket(self._path, _MODE, setting="socket of the fleet's worker")
        except SocketError as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        """Removes the socket."""
        if self._bound is not None:
            self._bound.remove()
            self._bound.listener.close()
            self._bound = None


def _accepted(connection: socket.socket) -> PeerLink | None:
    """Returns a worker that has connected; None if it may not be one, or has ended."""
    try:
        peer = peer_of(connection)
    except (ProcessLookupError, OSError) as error:
        log.warning("refused a worker of the fleet: %s", error, extra=event("worker_refused"))
        connection.close()
        return None
    if rights_of(peer, AccessOptions()) is Rights.MANAGE:
        return PeerLink(connection, peer)
    log.warning(
        "refused a worker of the fleet: %s has user %d: run it as user %d",
        f"process {peer.process.pid}" if peer.process.pid else "a process of another PID namespace",
        peer.uid,
        os.geteuid(),
        extra=event("worker_refused"),
    )
    os.close(peer.pidfd)
    connection.close()
    return None
