"""Segments in anonymous memory: for tests of the core that need neither names nor a daemon."""

from __future__ import annotations

import os

from pagetier.shm._core import Owner, Session
from pagetier.shm.geometry import Geometry
from pagetier.shm.process import Process

DAY_NS = 86_400 * 10**9


class Memory:
    """Three memfds, formatted; owners and sessions map them as daemon and engines map the named segments."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.descriptors = [os.memfd_create(f"pagetier-test-{kind}") for kind in ("index", "locks", "arena")]
        for descriptor, size in zip(self.descriptors, geometry.sizes, strict=True):
            os.ftruncate(descriptor, size)
        g = geometry
        owner = self.owner()
        owner.format(g.frame_bytes, g.frames, g.entries, g.spaces, 7, "test")

    def owner(self) -> Owner:
        """A daemon's hold on them, not yet adopted."""
        return Owner(*self.descriptors)

    def adopted(self, alive: int = 0) -> Owner:
        """The same, adopted. The caller drops the owner before."""
        owner = self.owner()
        assert owner.why_not() is None
        owner.adopt(alive)
        return owner

    def session(self, slot: int) -> Session:
        """What the process in this slot holds."""
        index, locks, arena = self.descriptors
        return Session(index, locks, arena, slot)

    def close(self) -> None:
        """What is mapped goes on."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def attach(owner: Owner, token: int) -> int:
    """A slot for an attachment of this process."""
    me = Process.of(os.getpid())
    return owner.attach(me.pid, os.getuid(), me.started, token, f"test {token}")
