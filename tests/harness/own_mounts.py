"""Gives a process a mount namespace of its own."""

from __future__ import annotations

import ctypes
from typing import Final

_CLONE_NEWNS: Final = 0x00020000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 1 << 18


def have_own_mounts() -> None:
    """Moves the calling thread, and its later threads and children, into a mount namespace of their own.

    A namespace is a copy of the one that it is made in, and keeps the file systems of that one in use after they are
    unmounted there. A test that mounts a file again then receives the same file system, with the state that it had.
    Changes nothing where that is not permitted: such a user cannot mount anything either.
    """
    libc = ctypes.CDLL(None)
    if libc.unshare(_CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)
