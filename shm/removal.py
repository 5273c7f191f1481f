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


class GivenBack(Enum):
    """The outcome of give_back()."""

    DONE = "the memory is given back"
    NOTHING = "there is nothing to give back"
    IN_USE = "a daemon lives on it"


def give_back(name: str) -> GivenBack:
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
            return GivenBack.IN_USE
        lock(name, index)
        _mark_closed(name, index)
        unlink(name)
    finally:
        os.close(index)
    return GivenBack.DONE


def _remove_rest(name: str) -> GivenBack:
    """Removes segments without an index: without it no daemon can use or adopt them."""
    if all(owner_of(name, kind) is None for kind in KINDS):
        return GivenBack.NOTHING
    unlink(name)
    return GivenBack.DONE


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
