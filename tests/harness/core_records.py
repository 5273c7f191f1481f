"""Records of the core with the values that a test names; all others are zero."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from pagetier.shm._core import LOCK_LAYOUT, LOCKS_OFFSET, AttachmentCounts, AttachmentRecord, IndexHeader


def lock_words(segment: mmap.mmap, entries: int) -> npt.NDArray[np.void]:
    """Returns the lock words in their mapped segment, writable."""
    names, offsets, sizes = zip(*LOCK_LAYOUT.fields, strict=True)
    formats = [f"<u{size}" for size in sizes]
    form: Any = {"names": names, "offsets": offsets, "formats": formats, "itemsize": LOCK_LAYOUT.size}
    return np.frombuffer(segment, np.dtype(form), entries, LOCKS_OFFSET)


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
