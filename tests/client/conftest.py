"""A daemon and a client for the tests of a module, and a check that no test leaves a client."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from pagetier.client import Client
from running_daemon import RunningDaemon, eventually

LONG_S = 20.0


@pytest.fixture(scope="module")
def daemon(request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    """Yields a daemon for all tests of a module, which may choose the size of its ARENA."""
    with RunningDaemon(getattr(request.module, "ARENA", "16MiB")) as running:
        yield running


@pytest.fixture
def empty_daemon(daemon: RunningDaemon) -> Iterator[RunningDaemon]:
    """Yields the module's daemon with empty memory, for pytest.mark.usefixtures()."""
    yield daemon
    assert eventually(lambda: not daemon.slots(), LONG_S), "a process is still attached"
    daemon.flush()
    header = daemon.header()
    assert header.used_frames == header.open_entries == 0


@pytest.fixture
def client(request: pytest.FixtureRequest, daemon: RunningDaemon) -> Iterator[Client]:
    """Yields a client of the module's daemon, or of its fake, with the module's TIMEOUT_S."""
    with daemon.client(timeout=getattr(request.module, "TIMEOUT_S", 1.0)) as attached:
        yield attached


@pytest.fixture(autouse=True)
def no_client_is_left() -> Iterator[None]:
    """Asserts that all clients of a test are closed: the thread of another one would look for its daemon forever."""
    before = reconnecting()
    yield
    if reconnecting() - before:
        gc.collect()  # closes the clients that only a cycle of references keeps
    assert eventually(lambda: not reconnecting() - before, LONG_S), "a client of the test still looks for its daemon"


def reconnecting() -> set[threading.Thread]:
    """Returns the threads of clients that are not closed, or that still have to return their slot."""
    return {thread for thread in threading.enumerate() if thread.name == "pagetier-reconnect"}
