"""Locks that show whether a process still maps the arena, in every namespace.

The daemon locks a byte of the arena's file through each descriptor that it sends for a slot. The lock belongs to the
open file, which the process's mapping keeps open: closing descriptors does not drop it. A forked child does not get it,
because the mapping is not inherited. The kernel drops the lock after it has removed the mapping, at the latest when the
process ends or executes another program.

Locks are shared, so that the descriptors of one slot do not exclude each other.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
from io import FileIO
from typing import Final

from pagetier.shm._core import Owner

_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_BITS: Final = 62  # of an offset in a file, which need not exist

UNLOCKED: Final = "cannot lock slot %d: after a restart its death may not be noticed (see lslocks)"


def new_lock() -> int:
    """Returns a byte that no attachment has locked before."""
    return secrets.randbits(_BITS) | 1


def is_lock(byte: int) -> bool:
    """Returns whether a recorded number can be a lock. Damaged segments may contain any number."""
    return 0 < byte < 1 << _BITS


def lock_descriptor(descriptor: int, byte: int) -> bool:
    """Locks the byte for as long as the open file exists.

    Returns:
        False if the kernel or another process prevents it.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, byte, 1, 0))
    except OSError:
        return False
    return True


def with_lock(descriptors: list[int], owner: Owner, slot: int) -> list[int]:
    """Returns the descriptors of segments, the arena's last, after locking the byte of the slot.

    If that is impossible, the slot's record no longer claims the lock: then its absence does not mean that there is no
    mapping.
    """
    lock = owner.lock_of(slot)
    if lock and not (is_lock(lock) and lock_descriptor(descriptors[-1], lock)):
        owner.forget_lock(slot)
    return descriptors


class SlotLocks:
    """Reads the locks of all slots through a descriptor of the arena, which it closes."""

    def __init__(self, arena: int) -> None:
        self._arena = FileIO(arena, "r+")

    def is_held(self, byte: int) -> bool:
        """Returns whether a process maps, or has a descriptor of, an open file that has locked the byte.

        If the kernel cannot tell, for example without memory, nothing says that the lock is gone.
        """
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        try:
            kind, *_ = _FLOCK.unpack(fcntl.fcntl(self._arena.fileno(), fcntl.F_OFD_GETLK, asked))
        except OSError:
            return True
        return bool(kind != fcntl.F_UNLCK)

    def close(self) -> None:
        """Closes the descriptor, which holds no lock. May be called again."""
        self._arena.close()
