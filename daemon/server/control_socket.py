"""Opens, serves and removes the control socket."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
from pathlib import Path

from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.daemon.config.schema import AccessOptions
from pagetier.daemon.index.service import Service
from pagetier.daemon.server.connection import Connection
from pagetier.daemon.server.house import GREETING_S, House
from pagetier.daemon.server.limits import ConnectionLimits
from pagetier.daemon.server.listener import ConnectionAcceptor
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.socket_trust import folder_flaw

log = logging.getLogger(__name__)

_BACKLOG = 128
_PROBE_S = 1.0
_RECEIVED = 256 << 10  # bytes that are received at once


class SocketError(Exception):
    """The control socket cannot be opened. The message says why and what to do."""


class Server:
    """The control socket from the constructor to stop(). It answers from start() on.

    Raises:
        SocketError: The socket cannot be opened.

    `patience` is the number of seconds in which a client must send its greeting.
    """

    def __init__(self, path: Path, access: AccessOptions, patience: float = GREETING_S) -> None:
        self._path = path
        self._access = access
        self._patience = patience
        self._limits = ConnectionLimits()
        self._throttle = LogThrottle(log)
        self._buffer = memoryview(bytearray(_RECEIVED))
        self._listener = open_socket(path, access.socket_mode, access.socket_group)
        self._file = identity(path)
        self._log_locked_out(access)
        self._accepting: ConnectionAcceptor | None = None

    async def start(self, service: Service) -> None:
        """Starts to answer. Clients that connected since the constructor have waited in the queue."""
        self._accepting = ConnectionAcceptor(self._listener, lambda: Connection(self._house(service)))

    def _house(self, service: Service) -> House:
        return House(service, self._access, self._limits, self._throttle, self._buffer, self._patience)

    def follow(self, access: AccessOptions, asked: AccessOptions) -> None:
        """Applies new access rules to new connections; existing ones stay.

        Args:
            access: The rules.
            asked: The same as configured, including what waits for a restart.
        """
        if access != self._access:
            self._access = access
            self._log_locked_out(asked)

    def _log_locked_out(self, asked: AccessOptions) -> None:
        with contextlib.suppress(FileNotFoundError):  # the socket was removed by another process
            if trouble := locked_out(self._path.stat(), asked):
                log.warning("%s", trouble, extra=event("socket_shut"))

    def stop(self) -> None:
        """Stops accepting connections. Existing ones stay open until the process ends."""
        remove_socket(self._path, self._file)
        point("server.unlinked")
        (self._accepting or self._listener).close()


def open_socket(path: Path, mode: int, group: tuple[int, ...] = (), setting: str = "socket") -> socket.socket:
    """Returns a listening socket, in place of one without a listener if there is one.

    Args:
        path: Where to create the socket.
        mode: Its permission bits.
        group: Its group ID; empty for the first group of this process.
        setting: The setting of the path, for messages.

    Returns:
        The socket, listening.

    Raises:
        SocketError: The socket cannot be created; the message says why and what to do.
    """
    _make_folder(path.parent, setting)
    _clear(path, setting)
    point("server.cleared")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(path))
        point("server.bound")
        _open_to(path, mode, group)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise SocketError(_why_unusable(path, setting, error)) from error
    except SocketError:
        listener.close()
        raise
    return listener


def _open_to(path: Path, mode: int, group: tuple[int, ...]) -> None:
    """Sets the group and the mode of the new socket. Raises SocketError, OSError."""
    # In a folder that others can write to, the name may already lead to another file, and chmod() or chown() by name
    # would change that file. A descriptor opened with O_NOFOLLOW does not follow links.
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise SocketError(
                f"{path} was replaced while it was created: use a folder that only the daemon's user can write to"
            )
        bound = f"/proc/self/fd/{descriptor}"
        _give(path, bound, group)  # before the mode, which may be meant for this group only
        os.chmod(bound, mode)  # noqa: PTH101  a descriptor, not a path
    finally:
        os.close(descriptor)


def _give(path: Path, bound: str, group: tuple[int, ...]) -> None:
    for number in group:
        try:
            os.chown(bound, -1, number)
        except OSError as error:
            path.unlink()
            why = f"cannot set the group of {path} to {number} ({error.strerror})"
            raise SocketError(
                f"{why}: use one of the daemon's own groups, or set another access.socket_group"
            ) from error


def locked_out(found: os.stat_result, access: AccessOptions) -> str:
    """Returns which configured users cannot open the socket, and what to do; "" if all of them can.

    Args:
        found: The stat of the socket, which may have been created with an earlier configuration.
        access: The rules as configured.
    """
    mode = stat.S_IMODE(found.st_mode)
    if not _keeps_out(mode, found.st_gid, access):
        return ""
    problem = (
        f"the socket's mode {mode:04o} keeps out users that access.users, access.groups, access.watch_users or"
        " access.watch_groups name: "
    )
    if not _keeps_out(access.socket_mode, next(iter(access.socket_group), found.st_gid), access):
        setting = f'socket_mode = "{access.socket_mode:04o}"' if access.socket_mode != mode else "socket_group"
        return f"{problem}access.{setting} waits for a restart"
    return f'{problem}set access.socket_mode = "0666" and restart (the daemon still refuses all other users)'


def _keeps_out(mode: int, group: int, access: AccessOptions) -> bool:
    """Returns whether a socket of this mode and group keeps out a configured user."""
    users, groups = access.users + access.watch_users, access.groups + access.watch_groups
    if mode & stat.S_IWOTH or not (users or groups):
        return False
    return bool(users) or not mode & stat.S_IWGRP or set(groups) != {group}


def remove_socket(path: Path, file: tuple[int, int] | None) -> None:
    """Removes a socket if its path still leads to this file."""
    try:
        if identity(path) == file:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning(
            "cannot remove the socket %s: %s; remove it before the next start",
            path,
            error.strerror,
            extra=event("socket_left"),
        )


def identity(path: Path) -> tuple[int, int] | None:
    """Returns the file at a path, None if there is none: when this daemon stops, the path may be another daemon's."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make_folder(folder: Path, setting: str) -> None:
    """Creates the folder of the socket. If it is in /tmp, another user could have created it before."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        flaw = folder_flaw(folder) if folder.name == f"pagetier-{os.geteuid()}" else ""
    except FileExistsError as error:
        raise SocketError(f"{folder} is not a folder: set another {setting}") from error
    except OSError as error:
        raise SocketError(f"cannot create {folder}, the folder of {setting}: {error.strerror}") from error
    if flaw:
        raise SocketError(f"{flaw}, or set another {setting}")


def _why_unusable(path: Path, setting: str, error: OSError) -> str:
    remedy = f"; this user may not write to {path.parent}: set another {setting}" if error.errno == errno.EACCES else ""
    return f"{setting} = {path}: {error.strerror}{remedy}"


def _clear(path: Path, setting: str) -> None:
    """Removes the socket of a dead daemon. Raises SocketError for any other file."""
    try:
        found = path.lstat()
        if not stat.S_ISSOCK(found.st_mode):
            raise SocketError(f"{path} exists and is not a socket: remove it, or set another {setting}")
        if _answers(path):
            raise SocketError(f"another daemon listens on {path}: stop it, or set another {setting}")
        path.unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SocketError(_why_unusable(path, setting, error)) from error


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
