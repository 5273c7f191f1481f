"""The lmdb store: each frame is a value of LMDB. It serves small tiers and file systems of all kinds.

It performs best in a process whose environment sets MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ high and
MALLOC_ARENA_MAX to 1: LMDB allocates what it writes, frame by frame, in several threads.
"""

from typing import ClassVar

from pagetier.tiers.disk.environment import Environment
from pagetier.tiers.disk.resize import EnvironmentResize
from pagetier.tiers.disk.store import DiskStore
from pagetier.tiers.lmdb.lmdb_environment import LmdbEnvironment
from pagetier.tiers.lmdb.resize import LmdbResize

__all__ = ["LmdbStore"]


class LmdbStore(DiskStore):
    """A store whose frames lie in LMDB."""

    KIND: ClassVar[type[Environment]] = LmdbEnvironment
    RESIZE: ClassVar[type[EnvironmentResize[LmdbEnvironment]]] = LmdbResize
