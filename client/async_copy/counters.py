"""What a copier counts."""

from __future__ import annotations

import msgspec


class Counts(msgspec.Struct):
    """Pages and bytes since the copier was made. Each lane counts for itself.

    left_out: granted pages that did not fit into the backlog. failed, cancelled: pages of stores and loads that were
    begun, or asked for, and came to nothing. stored, loaded: bytes.
    """

    left_out: int = 0
    failed: int = 0
    cancelled: int = 0
    stored: int = 0
    loaded: int = 0

    def __add__(self, other: Counts) -> Counts:
        ours, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Counts(*(one + two for one, two in zip(ours, theirs, strict=True)))
