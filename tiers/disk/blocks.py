"""Allocates blocks of a file before they are written, so that a full file system is noticed in time."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_KEEP_SIZE: Final = 1
_SECTOR: Final = 512  # bytes of st_blocks
UNSUPPORTED: Final = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
"""Of file systems that cannot allocate."""
# Allocated beyond the need, so that one call serves several transactions.
_STEP: Final = 64 << 20
_STEP_PART: Final = 64  # but at most this part of the limit


class PreallocatedBlocks:
    """The blocks of one data file, up to `limit` bytes. Not thread-safe.

    Where allocation is unsupported it counts as done.

    Attributes:
        end: The file has all of its blocks up to this offset.
        refusal: The error number of the latest allocation if it failed, otherwise 0.
    """

    def __init__(self, descriptor: int, limit: int) -> None:
        self._descriptor = descriptor
        self._limit = limit
        self._step = min(_STEP, limit // _STEP_PART)
        self.end = self.refusal = 0

    def allocate_to(self, end: int) -> bool:
        """Returns whether the file has its blocks up to `end` or its limit, allocating them if needed.

        Its length stays.
        """
        wanted = min(end, self._limit)
        return wanted <= self.end or self._give(min(wanted + self._step, self._limit)) or self._give(wanted)

    def _give(self, end: int) -> bool:
        refusal = allocate(self._descriptor, self.end, end - self.end)
        if refusal and refusal not in UNSUPPORTED:
            self.refusal = refusal
            return False
        self.end, self.refusal = self._limit if refusal else end, 0
        return True


def allocate(descriptor: int, start: int, length: int, mode: int = _KEEP_SIZE) -> int:
    """Allocates blocks, by default without changing the file's length.

    What the file system has no room for is refused at once: otherwise it would be full for a moment before it fails.

    Returns:
        The error number, or 0.
    """
    file, system = os.fstat(descriptor), os.fstatvfs(descriptor)
    limited = system.f_blocks > 0  # a tmpfs may have no limit
    if limited and start + length - file.st_blocks * _SECTOR > system.f_bavail * system.f_frsize:
        return errno.ENOSPC
    while _libc.fallocate(descriptor, mode, start, length):
        if (number := ctypes.get_errno()) != errno.EINTR:
            return number
    return 0
