"""Removes the control socket that a daemon left when it was killed."""

from __future__ import annotations

import logging
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from pagetier.shm.log_format import event

log = logging.getLogger("pagetierd.socket")

_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PROBE_S: Final = 1.0


def remove_dead_socket(path: Path) -> None:
    """Removes a socket that a dead daemon of this user, for root that one of any user, has left at a path.

    Whatever else is there stays, above all a socket on which a process listens.
    """
    try:
        folder = os.open(path.parent, _FOLDER)
    except OSError:
        return
    try:
        # By its descriptor the folder stays the same one, whatever another user puts at its path later.
        _remove(path, Path(f"/proc/self/fd/{folder}"))
    except OSError as error:
        why = f"cannot remove the socket {path} of a dead daemon: {error.strerror}; have root remove it"
        log.warning(why, extra=event("socket_left"))
    finally:
        os.close(folder)


def _remove(path: Path, folder: Path) -> None:
    """Removes it if it is dead. Raises OSError."""
    left, aside = folder / path.name, folder / f".{path.name}.{os.urandom(4).hex()}"
    if not _is_dead(left):
        return
    # A daemon may begin to listen at the path at any moment, but not at a name that only this process knows.
    left.rename(aside)
    if _is_dead(aside):
        aside.unlink()
        log.info("removed the socket %s of a dead daemon", path, extra=event("memory_released"))
    else:
        aside.rename(left)


def _is_dead(path: Path) -> bool:
    """Returns whether a path is a socket of a user whose sockets this one may remove, and no process listens on it."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        found = path.lstat()
        if not stat.S_ISSOCK(found.st_mode) or os.geteuid() not in (0, found.st_uid):
            return False
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
    return False
