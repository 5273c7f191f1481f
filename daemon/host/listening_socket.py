"""Opens, restores and removes listening Unix sockets."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pagetier.daemon.common.log_throttle import UNKNOWN_USER, FaultEvents, FaultLog, LogThrottle
from pagetier.daemon.host.folders import existing_folder, make_folders, why_no_folder
from pagetier.daemon.host.mounts import MOUNTINFO, read_mounts
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.segment_files import user_name
from pagetier.shm.socket_trust import folder_flaw

log = logging.getLogger("pagetierd.socket")

_LOST: Final = FaultEvents(log, "socket_lost", "socket_restored")
_BACKLOG = 128
_PROBE_S = 1.0


class SocketError(Exception):
    """A socket cannot be opened. The message says why and what to do."""


class BoundSocket:
    """A listening socket that keeps its path: a cleaner of temporary files may remove that while the daemon runs.

    Attributes:
        path: Where the socket is.
        listener: The socket, which restore() replaces.
    """

    def __init__(self, path: Path, mode: int, group: tuple[int, ...] = (), setting: str = "socket") -> None:
        """Takes the arguments of open_socket(). Raises SocketError."""
        self.path = path
        self._open: Callable[[], socket.socket] = lambda: open_socket(path, mode, group, setting)
        self.listener = self._open()
        self._file = identity(path)
        self._throttle = LogThrottle(log)
        self._lost = FaultLog("a socket was removed and cannot be opened again: %s", events=_LOST)

    def restore(self) -> socket.socket | None:
        """Opens the socket again if its path no longer leads to it.

        Returns:
            The previous listener, which the caller closes; None if the listener is the same.
        """
        if self._file is not None and identity(self.path) == self._file:
            return None
        try:
            before, self.listener = self.listener, self._open()
        except (SocketError, OSError) as error:
            self._lost.report(str(error))
            return None
        self._file = identity(self.path)
        self._lost.report("")
        line, facts = "the socket %s was removed by another process: it was opened again", event("socket_restored")
        self._throttle.log(logging.WARNING, UNKNOWN_USER, line, self.path, extra=facts)
        return before

    def remove(self) -> None:
        """Removes the path if it still leads to this socket, which stays open."""
        _remove(self.path, self._file)


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
            raise SocketError(_why_no_group(path, number, error)) from error


def _why_no_group(path: Path, number: int, error: OSError) -> str:
    why = f"cannot set the group of {path} to {number} ({error.strerror})"
    return f"{why}: use one of the daemon's own groups, or set another access.socket_group"


def _remove(path: Path, file: tuple[int, int] | None) -> None:
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
        make_folders(folder)
        _require_trusted(folder, setting)
    except OSError as error:
        raise SocketError(_why_no_folder(folder, setting, error)) from error


def _require_trusted(folder: Path, setting: str) -> None:
    """Raises SocketError if another user may have made the folder of a default socket or can write to it; OSError."""
    if folder.name == f"pagetier-{os.geteuid()}" and (flaw := folder_flaw(folder)):
        raise SocketError(f"{flaw}, or {another(setting)}")


def another(setting: str) -> str:
    """Returns the advice to set another path, and where else that of the control socket has to be known."""
    return f"set another {setting}{' here and in the engines (PAGETIER_SOCKET)' if setting == 'socket' else ''}"


def check_folder(path: Path, setting: str) -> None:
    """Checks that this user may create a socket at a path. Creates nothing.

    Raises:
        SocketError: What open_socket() would raise.
    """
    folder, denied = path.parent, PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    there = existing_folder(folder)
    closed = not os.access(there, os.W_OK | os.X_OK)
    if why_no_folder(folder, read_mounts(MOUNTINFO)) or (closed and there != folder):
        raise SocketError(_why_no_folder(folder, setting, denied))
    if closed:
        raise SocketError(_why_unusable(path, setting, denied))
    if there == folder:
        _require_trusted(folder, setting)


def check_group(path: Path, group: tuple[int, ...]) -> None:
    """Checks that this user may give a socket to a group, as root may to each. Raises what open_socket() would."""
    own, denied = {os.getegid(), *os.getgroups()}, PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    for number in group if os.geteuid() else ():
        if number not in own:
            raise SocketError(_why_no_group(path, number, denied))


def _why_no_folder(folder: Path, setting: str, error: OSError) -> str:
    why = f"user {os.geteuid()} cannot create {folder}: {error.strerror}"
    return f"{why_no_folder(folder, read_mounts(MOUNTINFO)) or why}: {another(setting)}"


def _why_unusable(path: Path, setting: str, error: OSError) -> str:
    if isinstance(error, PermissionError) and (owner := _other_owner(path)) is not None:
        left = f"left by a daemon of user {user_name(owner)} that has ended"
        return f"{setting} = {path}, {left}: have root remove it, or {another(setting)}"
    remedy = f"; this user may not write to {path.parent}: {another(setting)}" if error.errno == errno.EACCES else ""
    return f"{setting} = {path}: {error.strerror}{remedy}"


def _other_owner(path: Path) -> int | None:
    """Returns the other user to whom the socket at a path belongs; None if there is none."""
    with suppress(OSError):
        found = path.lstat()
        if stat.S_ISSOCK(found.st_mode) and found.st_uid != os.geteuid():
            return found.st_uid
    return None


def _clear(path: Path, setting: str) -> None:
    """Removes the socket of a dead daemon. Raises SocketError for any other file."""
    try:
        found = path.lstat()
        if not stat.S_ISSOCK(found.st_mode):
            raise SocketError(f"{path} exists and is not a socket: remove it, or {another(setting)}")
        if _answers(path, setting):
            raise SocketError(f"another daemon listens on {path}: stop it, or {another(setting)}")
        path.unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SocketError(_why_unusable(path, setting, error)) from error


def why_closed(path: Path, setting: str) -> str:
    """Returns what to do about another user's socket, of which this user cannot see whether a daemon listens on it."""
    why = f"user {os.geteuid()} may not open {path} of user {path.lstat().st_uid}"
    return f"{why}: if no daemon listens on it, have root remove it; or {another(setting)}"


def _answers(path: Path, setting: str) -> bool:
    """Returns whether a daemon listens on a path. Raises SocketError if this user may not open it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except PermissionError:
            raise SocketError(why_closed(path, setting)) from None
        except OSError:
            return True
    return True
