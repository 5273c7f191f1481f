"""What the daemon says of itself: evictions since a moment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ...shm._core import Observer, ShmError
from ...shm.link import Link, LinkError
from ...shm.protocol import BUILD, Observe

_ANSWER_S: Final = 5.0


class Watch:
    """Looks at a daemon's index, and goes on to when that daemon is gone and when another has taken over.

    Raises LinkError where there is no daemon, ShmError if its index can not be read.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._observer = _observe(socket)
        self._began = self._observer.header()["evicted"]

    def evictions(self) -> int:
        """Pages evicted since this watch began, also by a daemon that took the segments over or made new ones."""
        header = self._observer.header()
        evicted = header["evicted"] - self._began
        try:
            now = _observe(self._socket).header()
        except (LinkError, ShmError):
            return evicted
        return evicted if now["segments_id"] == header["segments_id"] else evicted + now["evicted"]


def _observe(socket: Path) -> Observer:
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
