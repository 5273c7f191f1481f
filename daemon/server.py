"""The control socket: opened, served, removed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from pathlib import Path

from .connection import Connection
from .options import Access
from .service import Service

_BACKLOG = 128
_PROBE_S = 1.0


class SocketError(Exception):
    """The control socket can not be opened; the message says why and what to do."""


class Server:
    """Listens on the control socket from start() to stop()."""

    def __init__(self, path: Path, access: Access) -> None:
        self._path = path
        self._access = access
        self._listener = _listen(path, access.socket_mode)
        self._connections: set[asyncio.BaseTransport] = set()

    async def start(self, service: Service) -> None:
        """Begins to answer. Who connected since the constructor has waited in the queue."""
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(service, self._access), sock=self._listener
        )

    def stop(self) -> None:
        """Removes the socket and closes all connections."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        self._server.close()


def _listen(path: Path, mode: int) -> socket.socket:
    _make_folder(path.parent)
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(path))
        path.chmod(mode)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise SocketError(f"{path}: {error.strerror}") from error
    return listener


def _make_folder(folder: Path) -> None:
    """The folder of the socket, which may be in /tmp: there anybody could have made it first."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as error:
        raise SocketError(f"{folder}: {error.strerror}") from error
    if folder.name == f"pagetier-{os.geteuid()}" and owner != os.geteuid():
        raise SocketError(f"{folder} belongs to user {owner}: remove it, or set another socket")


def _clear(path: Path) -> None:
    """Removes the socket of a dead daemon, and nothing else."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketError(f"{path} exists and is no socket: remove it, or set another socket")
    if _answers(path):
        raise SocketError(f"another daemon listens on {path}: stop it, or set another socket")
    path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True
