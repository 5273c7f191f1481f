"""Writes pages from the page cache to the disk early, and then removes them from the cache.

The kernel begins late, and then writes in bursts that slow everything down. Written pages are not kept in the cache
either: they were the coldest of the arena. Pages of the cache that are free at once serve the next transaction, which
halves the time that it spends in the kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import deque
from collections.abc import Sequence
from typing import Final

from pagetier.tiers.capacity import PAGE
from pagetier.tiers.disk.file_format import FrameExtent

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_WRITE: Final = 2
_WAIT_AND_WRITE: Final = 1 | _WRITE | 4
_UNDERWAY: Final = 4  # transactions whose writing is not awaited yet


class Writeback:
    """The write-back of one data file. Not thread-safe. All calls are hints, which a file system may ignore."""

    def __init__(self, descriptor: int, stride: int) -> None:
        self._descriptor = descriptor
        self._stride = stride * PAGE
        self._now: list[FrameExtent] = []
        self._underway: deque[list[FrameExtent]] = deque()

    def wrote(self, extents: Sequence[FrameExtent]) -> None:
        """Records extents of the transaction that is about to be committed."""
        self._now += extents

    def committed(self) -> None:
        """Starts writing the extents of this transaction, and drops those of a few transactions ago from the cache."""
        _libc.sync_file_range(self._descriptor, 0, 0, _WRITE)
        self._underway.append(self._now)
        self._now = []
        if len(self._underway) > _UNDERWAY:
            self._let_go(self._underway.popleft())

    def aborted(self) -> None:
        """Forgets the extents of a transaction that was not committed."""
        self._now = []

    def _let_go(self, extents: Sequence[FrameExtent]) -> None:
        for extent in extents:
            start, length = extent.page * PAGE, extent.frames * self._stride
            _libc.sync_file_range(self._descriptor, start, length, _WAIT_AND_WRITE)
            for frame in range(start, start + length, self._stride):
                self._forget(
                    frame + PAGE, self._stride - PAGE
                )  # its first page is touched again when the frame is dropped

    def _forget(self, start: int, length: int) -> None:
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._descriptor, start, length, os.POSIX_FADV_DONTNEED)
