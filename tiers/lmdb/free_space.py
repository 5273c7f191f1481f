"""The reserve of an environment, so that pages can be dropped from it when its file system is full.

LMDB changes nothing in place: even a transaction that only drops writes new pages first, and what it frees is reusable
from the next transaction but one. So blocks past the end of the file are allocated before a transaction needs them, and
a transaction that stores pages leaves enough for drops or does not begin. A copy-on-write file system (btrfs) may still
refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pagetier.tiers.capacity import DROPS, PAGE, LmdbShape

if TYPE_CHECKING:
    from pagetier.tiers.lmdb.lmdb_environment import LmdbEnvironment

# All in pages of the file. A path to a key and its frames has four levels in each of two trees, and beside each page a
# neighbour, since pages are split and joined.
_PATHS: Final = 16
_ENTRIES_PER_LEAF: Final = 16  # leaves that are half full have 37 frames or 22 headers
_FREED_PER_PAGE: Final = 256  # a list of freed pages has 512 in each page, and may be written twice
_ROOTS: Final = 16  # of databases and free lists, and to round the lists up to whole pages
_AGING: Final = 32  # two commits that change next to nothing, and two before them whose pages are not reusable yet


def reserve(environment: LmdbEnvironment) -> None:
    """Allocates the reserve of an environment that was just opened. A full file system may give it later."""
    environment.blocks.allocate_to((environment.file_pages + _for_drops(environment.shape)) * PAGE)


def can_store(environment: LmdbEnvironment, keys: int, frames: int) -> bool:
    """Returns whether there is room for such a transaction and for drops after it. Raises lmdb.Error."""
    return _has_room(environment, keys, frames, frames * environment.shape.stride + _for_drops(environment.shape))


def can_drop(environment: LmdbEnvironment, keys: int, frames: int) -> bool:
    """Returns whether there is room for dropping these pages and for reusing what is freed. Raises lmdb.Error."""
    return _has_room(environment, keys, frames, _AGING)


def _has_room(environment: LmdbEnvironment, keys: int, frames: int, more: int) -> bool:
    """Returns whether there is room past the end of the file or inside it; makes freed pages there reusable."""
    trees, values = environment.used_pages()
    needed = _written(environment.shape, keys, frames, 2 * trees) + more
    if environment.blocks.allocate_to((environment.file_pages + needed) * PAGE):
        return True
    if max(environment.file_pages, environment.blocks.end // PAGE) - trees - values < needed:
        return False
    environment.age()
    return True


def _for_drops(shape: LmdbShape) -> int:
    return _written(shape, 1, DROPS * shape.frames_per_transaction, _PATHS) + _AGING


def _written(shape: LmdbShape, keys: int, frames: int, paths: int) -> int:
    """Returns the most pages of trees and free lists that adding or removing these keys and frames writes."""
    leaves = min(_PATHS * keys, paths) + (keys + frames) // _ENTRIES_PER_LEAF
    return leaves + frames * shape.stride // _FREED_PER_PAGE + _ROOTS
