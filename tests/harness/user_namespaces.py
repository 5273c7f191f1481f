"""Runs a program in a user namespace of its own: python user_namespaces.py MAP USER GROUP COMMAND...

MAP is "INSIDE OUTSIDE COUNT" as in /proc/PID/uid_map, for users and groups, or "" to map none. With root's rights only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWUSER: Final = 0x10000000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MOUNT_ATTR_IDMAP = 1, 4, 0x00100000


def command_in(ids: str, user: int, group: int) -> list[str]:
    """Returns the beginning of a command line that runs the rest of it as this user inside such a namespace."""
    return [sys.executable, __file__, ids, str(user), str(group)]


def enter(ids: str, user: int, group: int, *more_groups: int) -> None:
    """Moves this process, which has one thread, into a namespace, and makes it this user inside."""
    ready, done = os.pipe(), os.pipe()
    parent = os.getpid()
    if (helper := os.fork()) == 0:
        os.read(ready[0], 1)
        _map(parent, ids)
        os._exit(0)
    _unshare(_CLONE_NEWUSER)
    os.write(ready[1], b"x")
    assert os.waitpid(helper, 0)[1] == 0, "the map was refused"
    for descriptor in (*ready, *done):
        os.close(descriptor)
    if ids:
        os.setgroups(more_groups)
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)


def mount_with_owners_of_inside(folder: str, ids: str) -> None:
    """Mounts a folder over itself, for this process only, so that files belong to the same numbers inside as outside.

    The kubelet mounts volumes into a pod with `hostUsers: false` in this way.
    """
    _unshare(_CLONE_NEWNS)
    holds, keeps = os.pipe()
    if (holder := os.fork()) == 0:
        enter(ids, 0, 0)
        os.write(keeps, b"x")
        signal.pause()
    os.read(holds, 1)
    try:
        namespace = os.open(f"/proc/{holder}/ns/user", os.O_RDONLY)
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    tree = _call(_OPEN_TREE, _AT_FDCWD, folder.encode(), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    attributes = struct.pack("=4Q", _MOUNT_ATTR_IDMAP, 0, 0, namespace)
    _call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))
    _call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, folder.encode(), _MOVE_MOUNT_F_EMPTY_PATH)


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")


def _call(number: int, *arguments: int | bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}")
    return result


def _map(process: int, ids: str) -> None:
    for kind in ("uid", "gid") if ids else ():
        Path(f"/proc/{process}/{kind}_map").write_text(ids)


def main(ids: str, user: str, group: str, command: list[str]) -> None:
    """Becomes the command."""
    enter(ids, int(user), int(group))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
