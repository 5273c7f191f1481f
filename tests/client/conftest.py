"""A daemon and a client for the tests of a module, and a check that no test leaves a client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client_threads import no_client_is_left
from eventually import eventually
from pagetier.client import Client
from running_daemon import RunningDaemon

__all__ = ["no_client_is_left"]


@pytest.fixture(scope="module")
def daemon(request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    """Yields a daemon for all tests of a module, which may choose the size of its ARENA and ARENA_FRAME.

    It evicts by LRU: tests store pages that never return, of which `cadence` would leave some out.
    """
    sizes = getattr(request.module, "ARENA", "16MiB"), getattr(request.module, "ARENA_FRAME", "64KiB")
    with RunningDaemon(*sizes, "--set", "evict.policy=lru") as running:
        yield running


@pytest.fixture
def empty_daemon(daemon: RunningDaemon) -> Iterator[RunningDaemon]:
    """Yields the module's daemon with empty memory, for pytest.mark.usefixtures()."""
    yield daemon
    assert eventually(lambda: not daemon.slots()), "a process is still attached"
    daemon.drop_all_pages()


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Client]:
    """Yields a client of the module's daemon, or of its fake."""
    with daemon.client() as attached:
        yield attached
