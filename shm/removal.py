"""Removal of segments that an earlier daemon left."""

from __future__ import annotations

import contextlib
import os
from enum import Enum

import posix_ipc

from pagetier.shm.index_header import head_of
from pagetier.shm.segment_files import (
    KINDS,
    is_locked,
    lock,
    open_segment,
    owner_of,
    unlink,
)
from pagetier.shm.segments import map_segments, used_slots


class MemoryRelease(Enum):
    """The outcome of release_memory()."""

    DONE = "the memory is released"
    NOTHING = "there is no memory to release"
    IN_USE = "not released, since a daemon uses it: stop the daemon first"


def release_memory(name: str) -> MemoryRelease:
    """Removes the segments that an earlier daemon left under this name, and marks them as closed for their users.

    Returns:
        Whether memory was released. Raises ShmError if the segments belong to another user.
    """
    try:
        index = open_segment(name, "index")
    except posix_ipc.ExistentialError:
        return _remove_rest(name)
    try:
        if is_locked(index):
            return MemoryRelease.IN_USE
        lock(name, index)
        _mark_closed(name, index)
        unlink(name)
    finally:
        os.close(index)
    return MemoryRelease.DONE


def _remove_rest(name: str) -> MemoryRelease:
    """Removes segments without an index: without it no daemon can use or adopt them."""
    if all(owner_of(name, kind) is None for kind in KINDS):
        return MemoryRelease.NOTHING
    unlink(name)
    return MemoryRelease.DONE


def _mark_closed(name: str, index: int) -> None:
    """Marks the segments as closed in their header, if the header can be trusted."""
    head = head_of(index)
    if head.unfinished or head.unusable_reason:
        return
    with contextlib.suppress(posix_ipc.ExistentialError, OSError):
        owner = map_segments(name)
        if owner.unusable_reason() is None:
            owner.adopt(used_slots(owner))
            owner.close()
