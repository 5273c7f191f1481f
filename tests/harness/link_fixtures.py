"""A link to a simulated daemon, and simple kinds of misbehaviour of that daemon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from eventually import eventually
from fake_daemon import FakeDaemon, Peer
from pagetier.shm import client_socket
from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import BUILD, Attach, Flush

HELLO = Attach(BUILD, 1, "test")
BIG = Flush(1, "x" * (3 << 20))
SOON_S, HOUR_S = 0.2, 3600.0
HANGS_S = 60.0  # after which a peer that hangs ends its connection, so that a call without a limit fails


@contextmanager
def linked(behave: Callable[[Peer], None] | None = None) -> Iterator[tuple[FakeDaemon, Link]]:
    with FakeDaemon(behave) as daemon:
        link = Link(daemon.socket, 5)
        assert eventually(lambda: daemon.peers)
        try:
            yield daemon, link
        finally:
            link.close()


def never_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has links poll before each receive, so that no time passes in recv(). Links must have been made before."""
    monkeypatch.setattr(client_socket, "_BLOCKING_S", math.inf)


def wait_for_end(peer: Peer) -> None:
    while peer.connection.recv(1 << 16):
        pass


def read_nothing(peer: Peer) -> None:
    peer.over.wait()


def hang_up(_: Peer) -> None: ...
