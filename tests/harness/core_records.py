"""Records of the core with the values that a test names; all others are zero."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from pagetier.shm._core import (
    DISK_HISTORY_LAYOUT,
    HISTORY_LAYOUT,
    LOCK_LAYOUT,
    LOCKS_OFFSET,
    AttachmentCounts,
    AttachmentRecord,
    IndexHeader,
)
from pagetier.shm.row_arrays import dtype_of


def lock_words(segment: mmap.mmap, entries: int) -> npt.NDArray[np.void]:
    """Returns the lock words in their mapped segment, writable."""
    return np.frombuffer(segment, dtype_of(LOCK_LAYOUT), entries, LOCKS_OFFSET)


def histories(index: int, header: IndexHeader) -> npt.NDArray[np.void]:
    """Returns what the index with this descriptor knows of the uses of its pages, as a copy."""
    packed = os.pread(index, header.entries * HISTORY_LAYOUT.size, header.at_histories)
    return np.frombuffer(bytearray(packed), dtype_of(HISTORY_LAYOUT))


def disk_histories(packed: bytes) -> npt.NDArray[np.void]:
    """Returns what the disk keeps of the uses of pages, as its records do."""
    return np.frombuffer(bytearray(packed), dtype_of(DISK_HISTORY_LAYOUT))


def header_with(**numbers: int) -> IndexHeader:
    return IndexHeader(**dict.fromkeys(IndexHeader._fields, 0) | numbers)


def counts_with(**numbers: int) -> AttachmentCounts:
    return AttachmentCounts(**dict.fromkeys(AttachmentCounts._fields, 0) | numbers)


def attachment_with(name: str, counts: AttachmentCounts | None = None, **numbers: Any) -> AttachmentRecord:
    zeros = dict.fromkeys(AttachmentRecord._fields, 0)
    return AttachmentRecord(**zeros | numbers | {"name": name, "counts": counts or counts_with()})


def increased(before: AttachmentCounts, after: AttachmentCounts) -> dict[str, int]:
    """Returns by how much counters have grown, without those that have not."""
    grown = {name: getattr(after, name) - getattr(before, name) for name in AttachmentCounts._fields}
    return {name: number for name, number in grown.items() if number}
