"""Decides whether this process trusts a control socket at a default path and the daemon behind it.

An attached engine gives its pages to the daemon and computes with the pages that the daemon returns. A path that the
user configured is always trusted. A default path is trusted only if no other user could have placed the socket.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

from pagetier.shm.user_namespace import unmapped_ids

_UCRED = struct.Struct("iII")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def peer_credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Returns PID, user and group of the peer: of a client when it connected, of a daemon when it began to listen."""
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid


def why_untrusted(path: Path, connection: socket.socket) -> str:
    """Returns why the daemon behind a connected socket is not trusted and what to do, or "" if it is trusted.

    The peer's credentials, which the kernel recorded, decide: even if the path changes, the peer is a process of a
    trusted user. Raises OSError if the folder is gone.
    """
    if flaw := folder_flaw(path.parent):
        return flaw
    user = peer_credentials(connection)[1]
    if user not in _trusted_users(path.parent):
        return f"it is served by user {user}{_whose(user)}: stop that daemon"
    return ""


def folder_flaw(folder: Path) -> str:
    """Returns why another user could have placed files in the folder and what to do, or "". Raises OSError."""
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        return f"{folder} is a link: remove it"
    if found.st_uid not in _trusted_users(folder):
        return f"{folder} belongs to user {found.st_uid}{_whose(found.st_uid)}: have root remove it"
    if found.st_mode & _OTHERS_WRITE:
        return f"others may write to {folder}: chmod go-w {folder}"
    return ""


def _trusted_users(folder: Path) -> set[int]:
    """Returns root, this process's user, and the folder's owner if only those two could have created the folder.

    A number that stands for all unmapped users identifies none of them, even if it is that of this process.

    So the user `pagetier` is trusted for /run/pagetier, which systemd creates for it; in /tmp no other user is trusted.
    """
    ours = {0, os.geteuid()} - {unmapped_ids().user}
    return ours | {folder.lstat().st_uid} if all(_only_for(ours, above) for above in folder.parents) else ours


def _whose(user: int) -> str:
    return ", the number of all users that this user namespace does not map" if user == unmapped_ids().user else ""


def _only_for(users: set[int], folder: Path) -> bool:
    """Returns whether only these users can create or rename files in the folder. False for a symbolic link."""
    found = folder.lstat()
    return found.st_uid in users and not found.st_mode & _OTHERS_WRITE
