"""Allocates the memory of an arena when a page first needs it, through the mapping or through the file."""

from __future__ import annotations

import os
from enum import Enum

import posix_ipc

from pagetier.shm._core import Owner
from pagetier.shm.segment_files import opened


class LazyMemory(Enum):
    """How memory is allocated: through the mapping, which may get huge pages, or through the file, which is faster."""

    MAPPING = "mapping"
    FILE = "file"


def allocate_lazily(owner: Owner, name: str, arena: tuple[int, int] | None, through: LazyMemory) -> None:
    """Makes the core allocate arena memory as pages are granted. Raises OSError.

    Args:
        owner: The owner of the segments.
        name: The name of the segments.
        arena: The file that is mapped, as identity_of() returned it: another one may have its name by now.
        through: How memory is allocated. A file that has lost its name is allocated through the mapping.
    """
    try:
        with opened(name, "arena") as descriptor:
            there = os.fstat(descriptor)
            usable = through is LazyMemory.FILE and (there.st_dev, there.st_ino) == arena
            owner.allocate_lazily(descriptor if usable else -1)
    except posix_ipc.ExistentialError:
        owner.allocate_lazily(-1)
