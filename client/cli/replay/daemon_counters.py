"""What the daemon says of itself: its deeds since a moment."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pagetier.client.cli.replay.report import Deeds
from pagetier.shm._core import Observer, ShmError
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.protocol import BUILD, Observe

_ANSWER_S: Final = 5.0


class Watch:
    """Looks at a daemon's index, and goes on to when that daemon is gone and when another has taken over.

    Raises LinkError where there is no daemon, ShmError if its index can not be read.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._observer = observe(socket)
        self._began = _deeds_in(self._observer.header())

    @property
    def disk_frames(self) -> int:
        """The disk's room; 0 without one."""
        return self._observer.header()["disk_frames"]

    def deeds(self) -> Deeds:
        """Since this watch began, also by a daemon that took the segments over or made new ones."""
        header = self._observer.header()
        done = _combined(_deeds_in(header), operator.sub, self._began)
        try:
            now = observe(self._socket).header()
        except (LinkError, ShmError):
            return done
        return done if now["segments_id"] == header["segments_id"] else _combined(done, operator.add, _deeds_in(now))


def _deeds_in(header: dict[str, int]) -> Deeds:
    return Deeds(**{field: header[field] for field in Deeds.__struct_fields__})


def _combined(left: Deeds, how: Callable[[int, int], int], right: Deeds) -> Deeds:
    fields = Deeds.__struct_fields__
    return Deeds(**{field: how(getattr(left, field), getattr(right, field)) for field in fields})


def observe(socket: Path) -> Observer:
    """The index of the daemon at a socket. Raises LinkError where there is none, ShmError if it can not be read."""
    link = Link(socket, _ANSWER_S)
    try:
        greeting = link.greet(Observe(BUILD), _ANSWER_S)
    finally:
        link.close()
    try:
        return Observer(*greeting.descriptors)
    finally:
        for descriptor in greeting.descriptors:
            os.close(descriptor)
