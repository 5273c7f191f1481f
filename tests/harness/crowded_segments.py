"""Segments with as many namespaces and engines as a page of them should stay small and cheap for."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from anonymous_segments import DAY_NS, attach
from page_reservations import reserve
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.geometry import Geometry
from pagetier.shm.protocol import BUILD
from pagetier.shm.segments import SegmentRequest, Segments, take

NAMESPACES, ENGINES = 10_000, 56
_FRAME = 4096


@contextmanager
def crowded_segments() -> Iterator[Segments]:
    """Yields segments of an index with as many namespaces as it has room for, and of 56 engines."""
    room = 2 * NAMESPACES
    geometry = Geometry(frame_bytes=_FRAME, frames=room, entries=room, spaces=NAMESPACES)
    taken = take(SegmentRequest(f"pagetier-test-{secrets.token_hex(6)}", geometry, BUILD))
    try:
        slots = [attach(taken.owner, number + 1) for number in range(ENGINES)]
        for number in range(NAMESPACES):
            space = taken.owner.space(os.urandom(KEY_BYTES), "<" * 100 + str(number), 16, 0, 0)
            size = _FRAME.to_bytes(8, "little")
            reserve(taken.owner, slots[number % ENGINES], space, 0, 1, DAY_NS, os.urandom(KEY_BYTES), size)
        yield taken
    finally:
        taken.remove()
