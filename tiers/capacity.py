"""Computes how many frames fit under a cap, with a reserve for everything else that an environment needs.

This module is light: the daemon validates the disk size with it and imports nothing else about LMDB.
"""

from __future__ import annotations

from typing import Final

import msgspec

PAGE: Final = 4096  # of LMDB, on every supported machine
VALUE_HEAD: Final = 16  # LMDB's header of an overflow value
# The most that one transaction writes.
TRANSACTION_BYTES: Final = 8 << 20
# Files beside data.mdb: lock.mdb, the state file and its successor, folders.
_BESIDE: Final = 64 << 10
# Pages of the trees for each frame, if every page had a single frame: a node of 54 bytes and one of 92 in leaves that
# are two thirds full, and the branches above them.
_TREE_PAGES_PER_FRAME: Final = 0.08
# Meta pages, roots, and the pages of the free lists.
_FIXED_PAGES: Final = 64
# Pages freed by a transaction are reusable from the next but one on: two transactions' pages are pending during a
# third.
_TRANSACTIONS_ON_THEIR_WAY: Final = 3
# Free pages that lie alone among trees, where no frame fits.
_FRAGMENTS: Final = 0.02
_SMALLEST_PART: Final = 32  # a transaction takes at most this part of an environment


class Shape(msgspec.Struct, frozen=True):
    """The size of an environment and of its frames and transactions."""

    map_bytes: int
    frame_bytes: int
    transaction_bytes: int

    @property
    def frames_per_transaction(self) -> int:
        """The number of frames in a transaction, at least one. A page with more frames gets its own transaction."""
        limit = min(self.transaction_bytes, self.map_bytes // _SMALLEST_PART)
        return max(1, limit // self.frame_bytes)

    @property
    def stride(self) -> int:
        """The number of pages of the file from one frame to the next."""
        return pages_of_value(self.frame_bytes)

    @property
    def room(self) -> int:
        """The number of frames that certainly fit, 0 if the environment is too small for any."""
        pages = self.map_bytes // PAGE * (1 - _FRAGMENTS) - _FIXED_PAGES
        spare = _TRANSACTIONS_ON_THEIR_WAY * self.frames_per_transaction
        return max(0, int(pages / (self.stride + _TREE_PAGES_PER_FRAME)) - spare)


def pages_of_value(frame_bytes: int) -> int:
    """Returns the number of pages of the file that a frame takes."""
    return -(-(frame_bytes + VALUE_HEAD) // PAGE)


def least_cap(environments: int, frame_bytes: int) -> int:
    """Returns the smallest cap, in whole MiB, with which each environment has room for a frame."""
    low, high = 0, 1
    while not has_room(high << 20, environments, frame_bytes):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if has_room(middle << 20, environments, frame_bytes) else (middle, high)
    return high << 20


def frames_under(cap_bytes: int, environments: int, frame_bytes: int) -> int:
    """Returns the number of frames that certainly fit into the files under a cap. Small frames waste much of it.

    A frame takes whole pages of the file with its header: one of 4 KiB takes 8 KiB.
    """
    return environments * shape_of(cap_bytes, environments, frame_bytes, TRANSACTION_BYTES).room


def has_room(cap_bytes: int, environments: int, frame_bytes: int) -> bool:
    """Returns whether each environment has room for a frame."""
    return shape_of(cap_bytes, environments, frame_bytes, TRANSACTION_BYTES).room > 0


def shape_of(cap_bytes: int, environments: int, frame_bytes: int, transaction_bytes: int) -> Shape:
    """Returns the shape of each of several environments whose files together never exceed the cap."""
    share = cap_bytes // environments - _BESIDE
    return Shape(max(0, share) // PAGE * PAGE, frame_bytes, transaction_bytes)
