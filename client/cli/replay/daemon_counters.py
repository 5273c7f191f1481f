"""Reads the counters of a daemon and how they change."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pagetier.client.cli.replay.replay_report import CounterDeltas
from pagetier.shm._core import IndexHeader, Observer, ShmError
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.protocol import BUILD, Observe
from pagetier.shm.segment_files import observe_and_close

_ANSWER_S: Final = 5.0


class DaemonCounters:
    """The counters of a daemon's index, relative to its creation. It works across a restart of the daemon.

    Raises:
        LinkError: The daemon cannot be reached.
        ShmError: Its index cannot be read.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._observer = observe(socket)
        self._began = _counters_in(self._observer.header())

    @property
    def disk_frames(self) -> int:
        """The frames of the disk tier; 0 without one."""
        return self._observer.header().disk_frames

    def deltas(self) -> CounterDeltas:
        """Returns the changes since this object was made.

        They include those of a later daemon that adopted the segments or created new ones.
        """
        header = self._observer.header()
        done = _combined(_counters_in(header), operator.sub, self._began)
        try:
            now = observe(self._socket).header()
        except (LinkError, ShmError):
            return done
        return done if now.segments_id == header.segments_id else _combined(done, operator.add, _counters_in(now))


def _counters_in(header: IndexHeader) -> CounterDeltas:
    return CounterDeltas(**{field: getattr(header, field) for field in CounterDeltas.__struct_fields__})


def _combined(left: CounterDeltas, how: Callable[[int, int], int], right: CounterDeltas) -> CounterDeltas:
    fields = CounterDeltas.__struct_fields__
    return CounterDeltas(**{field: how(getattr(left, field), getattr(right, field)) for field in fields})


def observe(socket: Path) -> Observer:
    """Returns an observer of the daemon's index.

    Raises LinkError if it is unreachable, ShmError if it is unreadable.
    """
    link = Link(socket, _ANSWER_S)
    try:
        return observe_and_close(link.greet(Observe(BUILD), _ANSWER_S).descriptors)
    finally:
        link.close()
