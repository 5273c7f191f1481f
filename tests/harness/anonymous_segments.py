"""Segments in anonymous memory, for tests of the core that need neither names nor a daemon."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

from pagetier.shm._core import Owner, Session
from pagetier.shm.geometry import Geometry
from pagetier.shm.process import Process

DAY_NS = 86_400 * 10**9


class Memory:
    """Three formatted memfds, open until close() or until nothing refers to this object.

    Owners and sessions map them as the daemon and engines map named segments.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.descriptors = [os.memfd_create(f"pagetier-test-{kind}") for kind in ("index", "locks", "arena")]
        self.close = weakref.finalize(self, close_all, self.descriptors)  # existing mappings stay usable
        for descriptor, size in zip(self.descriptors, geometry.sizes, strict=True):
            os.ftruncate(descriptor, size)
        g = geometry
        owner = self.owner()
        owner.format(g.frame_bytes, g.frames, g.entries, g.spaces, 7, "test")

    def owner(self) -> Owner:
        """Returns an owner that has not adopted the segments."""
        return Owner(*self.descriptors)

    def adopted(self, alive: int = 0) -> Owner:
        """Returns an owner that has adopted the segments. The caller must have dropped the previous owner."""
        owner = self.owner()
        assert owner.unusable_reason() is None
        owner.adopt(alive)
        return owner

    def session(self, slot: int) -> Session:
        """Returns a session of the process in this slot."""
        index, locks, arena = self.descriptors
        return Session(index, locks, arena, slot)


def close_all(descriptors: Sequence[int]) -> None:
    """Closes each of the descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def attach(owner: Owner, token: int) -> int:
    """Attaches this process and returns its slot."""
    me = Process.of(os.getpid())
    return owner.attach(me.pid, os.getuid(), me.started, token, f"test {token}")
