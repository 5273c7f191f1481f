"""Runs a program in a user namespace of its own: python user_namespaces.py MAP USER GROUP COMMAND...

MAP is "INSIDE OUTSIDE COUNT" as in /proc/PID/uid_map, for users and groups, or "" to map none. With root's rights only.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

_CLONE_NEWUSER: Final = 0x10000000


def command_in(ids: str, user: int, group: int) -> list[str]:
    """Returns the beginning of a command line that runs the rest of it as this user inside such a namespace."""
    return [sys.executable, __file__, ids, str(user), str(group)]


def enter(ids: str, user: int, group: int) -> None:
    """Moves this process, which has one thread, into a namespace, and makes it this user inside."""
    ready, done = os.pipe(), os.pipe()
    parent = os.getpid()
    if (helper := os.fork()) == 0:
        os.read(ready[0], 1)
        _map(parent, ids)
        os._exit(0)
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    os.write(ready[1], b"x")
    assert os.waitpid(helper, 0)[1] == 0, "the map was refused"
    for descriptor in (*ready, *done):
        os.close(descriptor)
    if ids:
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)


def _map(process: int, ids: str) -> None:
    for kind in ("uid", "gid") if ids else ():
        Path(f"/proc/{process}/{kind}_map").write_text(ids)


def main(ids: str, user: str, group: str, command: list[str]) -> None:
    """Becomes the command."""
    enter(ids, int(user), int(group))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
