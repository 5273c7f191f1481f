"""What an environment holds ahead of need, so that pages can be dropped from it where its file system is full.

LMDB changes nothing in place: a transaction that only drops writes new pages first, and what it frees serves from the
next but one on. So blocks behind the end of the file are asked for before a transaction needs them, and what stores
pages leaves enough for drops, or is not begun. A file system that copies what is written over (btrfs) may still refuse.
"""

from __future__ import annotations

import errno
import os
from typing import Final

import lmdb

from ..room import PAGE, Shape
from .environment import Environment

# All in pages of the file. On the way to a key and its frames lie four levels in each of two trees, and beside each
# a neighbour, as pages are split and joined.
_PATHS: Final = 16
_ENTRIES_PER_LEAF: Final = 16  # leaves that are half filled have 37 frames or 22 headers
_FREED_PER_PAGE: Final = 256  # a list of what was freed has 512 in each page; it may be written twice
_ROOTS: Final = 16  # of databases and free lists, and what the lists lack to whole pages
_AGING: Final = 32  # two commits that change next to nothing, and the two before them, whose pages do not serve yet
_DROPPED: Final = 8  # the largest page that can be dropped for sure, in transactions' worth of frames


class FullError(lmdb.DiskError):
    """The file system has no room for a transaction, which was not begun."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(f"{os.strerror(errno.ENOSPC)}: the file system of {environment.folder} is full")


def hold(environment: Environment) -> None:
    """Once it is open. A file system that is full by then gives what it can later."""
    environment.blocks.reach((environment.file_pages + _for_drops(environment.shape)) * PAGE)


def can_store(environment: Environment, keys: int, frames: int) -> bool:
    """Whether there is room for a transaction with so many, and for drops after it. Raises lmdb.Error."""
    return _has_room(environment, keys, frames, frames * environment.shape.stride + _for_drops(environment.shape))


def can_drop(environment: Environment, keys: int, frames: int) -> bool:
    """Whether there is room for what is written then, and for what it frees to serve. Raises lmdb.Error."""
    return _has_room(environment, keys, frames, _AGING)


def _has_room(environment: Environment, keys: int, frames: int, more: int) -> bool:
    """Behind the end of the file, or else in it: what is free there is made to serve."""
    trees, values = environment.used_pages()
    needed = _written(environment.shape, keys, frames, 2 * trees) + more
    if environment.blocks.reach((environment.file_pages + needed) * PAGE):
        return True
    if max(environment.file_pages, environment.blocks.end // PAGE) - trees - values < needed:
        return False
    environment.age()
    return True


def _for_drops(shape: Shape) -> int:
    return _written(shape, 1, _DROPPED * shape.frames_per_transaction, _PATHS) + _AGING


def _written(shape: Shape, keys: int, frames: int, paths: int) -> int:
    """The most that goes into trees, with at most so many paths, and free lists as keys with frames come or go."""
    leaves = min(_PATHS * keys, paths) + (keys + frames) // _ENTRIES_PER_LEAF
    return leaves + frames * shape.stride // _FREED_PER_PAGE + _ROOTS
