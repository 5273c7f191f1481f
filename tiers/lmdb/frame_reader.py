"""Locates frames in the file and reads them straight into the arena."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from pagetier.tiers.capacity import PAGE, VALUE_HEAD
from pagetier.tiers.disk import file_system
from pagetier.tiers.disk.file_format import FrameExtent

_IOVEC: Final = 512  # frames in one call, each with the gap after it: the kernel takes 1024 pieces


def page_after(key: memoryview) -> int:
    """Returns the file's page where the overflow value of this key begins.

    The caller guarantees that the key is LMDB's own, of a node that was just put or found. A node is its key followed
    by its data, which for an overflow value is the page's number.
    """
    address: int = np.frombuffer(key, np.uint8).__array_interface__["data"][0]
    return ctypes.c_uint64.from_address(address + len(key)).value


class FrameReader:
    """Reads extents from a data file. The kernel copies, so the GIL is free and no page fault occurs."""

    def __init__(self, descriptor: int, frame_bytes: int, stride: int) -> None:
        self._descriptor = descriptor
        self._frame_bytes = frame_bytes
        self._stride = stride * PAGE
        # Receives the bytes between two frames, which are not used.
        self._gap = memoryview(bytearray(self._stride - frame_bytes))

    def read(self, extents: Sequence[FrameExtent], frames: Sequence[memoryview]) -> bool:
        """Returns whether the file had all bytes. Raises OSError. The caller guarantees that no extent is freed."""
        if sum(extent.frames for extent in extents) != len(frames):
            return False
        first = 0
        for page, count in self._pieces(extents):
            if not self._read(page, frames[first : first + count]):
                return False
            first += count
        return True

    def _pieces(self, extents: Sequence[FrameExtent]) -> Iterator[tuple[int, int]]:
        """Yields the extents, split into pieces that one call can read."""
        for extent in extents:
            for done in range(0, extent.frames, _IOVEC):
                yield extent.page + done * (self._stride // PAGE), min(_IOVEC, extent.frames - done)

    def _read(self, page: int, frames: Sequence[memoryview]) -> bool:
        pieces: list[memoryview] = []
        for frame in frames:
            pieces += (frame, self._gap)
        pieces.pop()
        at = page * PAGE + VALUE_HEAD
        while pieces:
            done = os.preadv(self._descriptor, pieces, at)
            if not done:
                return False
            at += done
            pieces = file_system.remaining(pieces, done)
        return True

    def heads(self, extents: Sequence[FrameExtent]) -> Iterator[int]:
        """Yields the offset of the first page of each frame."""
        for extent in extents:
            start = extent.page * PAGE
            yield from range(start, start + extent.frames * self._stride, self._stride)
