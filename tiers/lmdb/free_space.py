"""Computes the reserve of an environment, so that pages can be dropped from it when its file system is full.

LMDB changes nothing in place: even a transaction that only drops writes new pages first, and what it frees is reusable
from the next transaction but one. So blocks past the end of the file are allocated before a transaction needs them, and
a transaction that stores pages leaves enough for drops or does not begin. A copy-on-write file system (btrfs) may still
refuse.
"""

from __future__ import annotations

from typing import Final

from pagetier.tiers.capacity import DROPS, LmdbShape

# All in pages of the file. A path to a key and its frames has four levels in each of two trees, and beside each page a
# neighbour, since pages are split and joined.
_PATHS: Final = 16
_ENTRIES_PER_LEAF: Final = 16  # leaves that are half full have 37 frames or 22 headers
_FREED_PER_PAGE: Final = 256  # a list of freed pages has 512 in each page, and may be written twice
_ROOTS: Final = 16  # of databases and free lists, and to round the lists up to whole pages
_AGING: Final = 32  # two commits that change next to nothing, and two before them whose pages are not reusable yet


def pages_to_store(shape: LmdbShape, keys: int, frames: int, trees: int) -> int:
    """Returns the free pages that a transaction needs to store these keys and frames, and for drops after it.

    Args:
        shape: The environment's shape.
        keys: The number of pages to store.
        frames: The number of their frames.
        trees: The pages of the file that trees use.
    """
    return _written(shape, keys, frames, 2 * trees) + frames * shape.stride + pages_for_drops(shape)


def pages_to_drop(shape: LmdbShape, keys: int, frames: int, trees: int) -> int:
    """Returns the free pages that a transaction needs to drop these keys and frames, and to reuse what is freed."""
    return _written(shape, keys, frames, 2 * trees) + _AGING


def pages_for_drops(shape: LmdbShape) -> int:
    """Returns the free pages of the reserve, with which any pages can be dropped."""
    return _written(shape, 1, DROPS * shape.frames_per_transaction, _PATHS) + _AGING


def _written(shape: LmdbShape, keys: int, frames: int, paths: int) -> int:
    """Returns the most pages of trees and free lists that adding or removing these keys and frames writes."""
    leaves = min(_PATHS * keys, paths) + (keys + frames) // _ENTRIES_PER_LEAF
    return leaves + frames * shape.stride // _FREED_PER_PAGE + _ROOTS
