"""Allocates blocks of a data file before they are written, also past its end."""

from __future__ import annotations

import ctypes
import errno
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_KEEP_SIZE: Final = 1
_UNKNOWN: Final = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
# Allocated beyond the need, so that one call serves several transactions.
_STEP: Final = 64 << 20
_STEP_PART: Final = 64  # but at most this part of the limit


class Blocks:
    """The blocks of one data file, up to `limit` bytes. Not thread-safe.

    Where allocation is unsupported it counts as done.
    """

    def __init__(self, descriptor: int, limit: int) -> None:
        self._descriptor = descriptor
        self._limit = limit
        self._step = min(_STEP, limit // _STEP_PART)
        self.end = 0
        """The file has all of its blocks up to this offset."""

    def reach(self, end: int) -> bool:
        """Returns whether the file has its blocks up to `end` or its limit, allocating them if needed.

        Its length stays.
        """
        wanted = min(end, self._limit)
        return wanted <= self.end or self._give(min(wanted + self._step, self._limit)) or self._give(wanted)

    def _give(self, end: int) -> bool:
        refusal = _allocate(self._descriptor, self.end, end - self.end)
        if refusal and refusal not in _UNKNOWN:
            return False
        self.end = self._limit if refusal else end
        return True


def _allocate(descriptor: int, start: int, length: int) -> int:
    """Allocates without changing the file's length. Returns the error number, or 0."""
    while _libc.fallocate(descriptor, _KEEP_SIZE, start, length):
        if (number := ctypes.get_errno()) != errno.EINTR:
            return number
    return 0
