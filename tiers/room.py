"""How much fits under a cap: frames are counted, and everything else that an environment needs is set aside.

Light: the daemon asks this of a size before it believes in it, and has nothing to do with LMDB otherwise.
"""

from __future__ import annotations

from typing import Final

import msgspec

PAGE: Final = 4096  # of LMDB, on every machine that we support
VALUE_HEAD: Final = 16  # what LMDB puts before an overflow value
# What is written in one transaction, at most.
TRANSACTION_BYTES: Final = 8 << 20
# Beside data.mdb: lock.mdb, the state file and its successor, folders.
_BESIDE: Final = 64 << 10
# Of the trees for each frame, if every page were a single frame: a node of 54 bytes and one of 92 in leaves filled
# to two thirds, and the branches above them.
_TREE_PAGES_PER_FRAME: Final = 0.08
# Metas, roots, and the free lists' own pages.
_FIXED_PAGES: Final = 64
# Pages freed in a transaction serve from the next but one on: two are on their way while one writes.
_TRANSACTIONS_ON_THEIR_WAY: Final = 3
# Free pages that lie alone among trees, where no frame fits.
_FRAGMENTS: Final = 0.02
_SMALLEST_PART: Final = 32  # a transaction takes at most this part of an environment


class Shape(msgspec.Struct, frozen=True):
    """Of an environment: how big it may grow, and what it holds."""

    map_bytes: int
    frame_bytes: int
    transaction_bytes: int

    @property
    def frames_per_transaction(self) -> int:
        """At least one. A page of more frames has a transaction of its own."""
        limit = min(self.transaction_bytes, self.map_bytes // _SMALLEST_PART)
        return max(1, limit // self.frame_bytes)

    @property
    def stride(self) -> int:
        """Pages of the file from one frame to the next one behind it."""
        return pages_of_value(self.frame_bytes)

    @property
    def room(self) -> int:
        """How many frames fit for sure. 0 if the environment is too small for any."""
        pages = self.map_bytes // PAGE * (1 - _FRAGMENTS) - _FIXED_PAGES
        spare = _TRANSACTIONS_ON_THEIR_WAY * self.frames_per_transaction
        return max(0, int(pages / (self.stride + _TREE_PAGES_PER_FRAME)) - spare)


def pages_of_value(frame_bytes: int) -> int:
    """Pages of the file that a frame takes."""
    return -(-(frame_bytes + VALUE_HEAD) // PAGE)


def least_cap(environments: int, frame_bytes: int) -> int:
    """The smallest number of whole MiB in which each environment holds a frame."""
    low, high = 0, 1
    while not holds_any(high << 20, environments, frame_bytes):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds_any(middle << 20, environments, frame_bytes) else (middle, high)
    return high << 20


def holds_any(cap_bytes: int, environments: int, frame_bytes: int) -> bool:
    """Whether each environment holds a frame."""
    return shape_of(cap_bytes, environments, frame_bytes, TRANSACTION_BYTES).room > 0


def shape_of(cap_bytes: int, environments: int, frame_bytes: int, transaction_bytes: int) -> Shape:
    """Of each of several environments whose files together never exceed the cap."""
    share = cap_bytes // environments - _BESIDE
    return Shape(max(0, share) // PAGE * PAGE, frame_bytes, transaction_bytes)
