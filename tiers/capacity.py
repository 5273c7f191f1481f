"""Computes how many frames fit under a cap, with a reserve for everything else that a store needs.

This module is light: the daemon validates the disk size with it and imports nothing else about the stores.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

PAGE: Final = 4096  # of LMDB, on every supported machine
VALUE_HEAD: Final = 16  # LMDB's header of an overflow value
# The most that one transaction writes.
TRANSACTION_BYTES: Final = 8 << 20
DROPS: Final = 8  # transactions' worth of frames dropped in one: it writes little, and the room is reusable sooner
# Files beside data.mdb: lock.mdb, the state file and its successor, folders.
_BESIDE: Final = 64 << 10
# What the daemon knows of lookups, between a stop and the next start. It is saved in what is left where it is no small
# part of the cap, and in LMDB, whose tiers of earlier versions would have to be compacted.
_LOOKUPS: Final = 5 << 18
_LARGE: Final = 1 << 30
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
# The files store: LMDB has a record for each page, 120 bytes and 8 for each extent, in leaves that are two thirds full.
_RECORD_BYTES: Final = 256
# The records that one transaction changes: it copies a leaf and its branches for each of them.
_RECORDS_PER_TRANSACTION: Final = 256
_COPIED_PER_RECORD: Final = 2 * PAGE


# A compressed page takes whole slots: at most a sixteenth of a frame is lost in the last one. Below 16 KiB records and
# calls would cost more than is gained.
_SLOTS_PER_FRAME: Final = 16
_LEAST_SLOT: Final = 16 << 10


StoreName: TypeAlias = Literal["lmdb", "files"]
"""The stores of the disk tier, by their names in `disk.store`: where the bytes of the frames lie."""
Compress: TypeAlias = Literal["off", "on"]
"""Whether pages are compressed on disk, which the store `files` can: `disk.compress`."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The size of an environment and of its frames and transactions. `share_bytes`: of all of its files together."""

    share_bytes: int
    frame_bytes: int
    transaction_bytes: int

    @property
    def frames_per_transaction(self) -> int:
        """The number of frames in a transaction, at least one. A page with more frames gets its own transaction."""
        limit = min(self.transaction_bytes, self.share_bytes // _SMALLEST_PART)
        return max(1, limit // self.frame_bytes)

    @property
    def pages_per_transaction(self) -> int:
        """The largest number of pages that one transaction stores or drops."""
        raise NotImplementedError

    @property
    def map_bytes(self) -> int:
        """The limit of the size of LMDB's file."""
        raise NotImplementedError

    @property
    def capacity(self) -> int:
        """The number of frames that certainly fit, 0 if the environment is too small for any."""
        raise NotImplementedError


class LmdbShape(Shape, frozen=True, kw_only=True):
    """The shape of an environment that holds frames as values."""

    @property
    def pages_per_transaction(self) -> int:
        """As many as there are frames in it."""
        return DROPS * self.frames_per_transaction

    @property
    def map_bytes(self) -> int:
        """The whole share."""
        return self.share_bytes

    @property
    def stride(self) -> int:
        """The number of pages of the file from one frame to the next."""
        return pages_of_value(self.frame_bytes)

    @property
    def capacity(self) -> int:
        """The number of frames that certainly fit, 0 if the environment is too small for any."""
        pages = self.share_bytes // PAGE * (1 - _FRAGMENTS) - _FIXED_PAGES
        spare = _TRANSACTIONS_ON_THEIR_WAY * self.frames_per_transaction
        return max(0, int(pages / (self.stride + _TREE_PAGES_PER_FRAME)) - spare)


class FilesShape(Shape, frozen=True, kw_only=True):
    """The shape of an environment that holds records, beside files that hold the frames."""

    @property
    def pages_per_transaction(self) -> int:
        """Few: their records lie in as many leaves, each of which a transaction copies."""
        return _RECORDS_PER_TRANSACTION

    @property
    def map_bytes(self) -> int:
        """What the frames leave."""
        return max(0, self.share_bytes - self.capacity * self.frame_bytes)

    @property
    def capacity(self) -> int:
        """The number of frames that certainly fit, 0 if the environment is too small for any.

        Copies of records are at most as large as the tree, and at most what the transactions on their way change.
        """
        bytes_left = self.share_bytes - _FIXED_PAGES * PAGE
        copies = 1 + _TRANSACTIONS_ON_THEIR_WAY
        small = bytes_left // (self.frame_bytes + copies * _RECORD_BYTES)
        changed = copies * _RECORDS_PER_TRANSACTION * _COPIED_PER_RECORD
        return max(0, small, (bytes_left - changed) // (self.frame_bytes + _RECORD_BYTES))


_SHAPES: Final[dict[StoreName, type[Shape]]] = {"lmdb": LmdbShape, "files": FilesShape}


def pages_of_value(frame_bytes: int) -> int:
    """Returns the number of pages of the file that a frame takes."""
    return -(-(frame_bytes + VALUE_HEAD) // PAGE)


def slot_bytes_of(frame_bytes: int) -> int:
    """Returns the size of the slots in which compressed pages are stored."""
    return min(frame_bytes, max(_LEAST_SLOT, frame_bytes // _SLOTS_PER_FRAME))


def least_cap(store: StoreName, environments: int, frame_bytes: int, compress: Compress = "off") -> int:
    """Returns the smallest cap, in whole MiB, with which a frame fits into each environment."""
    low, high = 0, 1
    while not fits_a_frame(store, high << 20, environments, frame_bytes, compress):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        fits = fits_a_frame(store, middle << 20, environments, frame_bytes, compress)
        low, high = (low, middle) if fits else (middle, high)
    return high << 20


def frames_under(
    store: StoreName, cap_bytes: int, environments: int, frame_bytes: int, compress: Compress = "off"
) -> int:
    """Returns the number of frames that certainly fit into the files under a cap, compressed to nothing less.

    In LMDB small frames waste much of it: a frame takes whole pages of the file with its header, one of 4 KiB takes
    8 KiB. In files a frame takes its own size, and a record beside it.
    """
    slot = frame_bytes if compress == "off" else slot_bytes_of(frame_bytes)
    slots = environments * shape_of(store, cap_bytes, environments, slot, TRANSACTION_BYTES).capacity
    return slots * slot // frame_bytes


def fits_a_frame(
    store: StoreName, cap_bytes: int, environments: int, frame_bytes: int, compress: Compress = "off"
) -> bool:
    """Returns whether a frame fits into each environment."""
    slot = frame_bytes if compress == "off" else slot_bytes_of(frame_bytes)
    return shape_of(store, cap_bytes, environments, slot, TRANSACTION_BYTES).capacity * slot >= frame_bytes


def shape_of(store: StoreName, cap_bytes: int, environments: int, frame_bytes: int, transaction_bytes: int) -> Shape:
    """Returns the shape of each of several environments whose files together never exceed the cap."""
    beside = _BESIDE + (_LOOKUPS // environments if store == "files" and cap_bytes >= _LARGE else 0)
    share = max(0, cap_bytes // environments - beside) // PAGE * PAGE
    return _SHAPES[store](share_bytes=share, frame_bytes=frame_bytes, transaction_bytes=transaction_bytes)
