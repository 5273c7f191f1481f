"""The files store: frames lie in files beside LMDB, and are written and read past the page cache.

LMDB has one record a page. The order of a store is bytes, then record; the order of a drop is record deleted and
committed, then reuse of its slots, once their last reader has ended. Which slots are free follows from the records.
"""

from typing import ClassVar

from pagetier.tiers.disk.environment import Environment
from pagetier.tiers.disk.resize import EnvironmentResize
from pagetier.tiers.disk.store import DiskStore
from pagetier.tiers.frame_files.compressed_store import CompressedFilesStore
from pagetier.tiers.frame_files.files_environment import FilesEnvironment
from pagetier.tiers.frame_files.resize import FilesResize

__all__ = ["CompressedFilesStore", "FilesStore"]


class FilesStore(DiskStore):
    """A store whose frames lie in files."""

    KIND: ClassVar[type[Environment]] = FilesEnvironment
    RESIZE: ClassVar[type[EnvironmentResize[FilesEnvironment]]] = FilesResize
