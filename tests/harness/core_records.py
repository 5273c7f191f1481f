"""Records of the core with the values that a test names; all others are zero."""

from __future__ import annotations

from typing import Any

from pagetier.shm._core import AttachmentCounts, AttachmentRecord, IndexHeader


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
