"""The files of named segments, and requests for them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pagetier.shm.segments import Leftovers, SegmentRequest, Segments

KINDS = ("index", "locks", "arena")
SHM = Path("/dev/shm")


def files(segment_request: SegmentRequest) -> list[Path]:
    return sorted(SHM.glob(f"{segment_request.name}.*"))


def path_of(segment_request: SegmentRequest, kind: str) -> Path:
    return SHM / f"{segment_request.name}.{kind}"


def sound(segments: Segments) -> bool:
    return segments.owner.check_integrity() == []


def fresh(segment_request: SegmentRequest) -> SegmentRequest:
    return msgspec.structs.replace(segment_request, leftovers=Leftovers.DISCARD)
