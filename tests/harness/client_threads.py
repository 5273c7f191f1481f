"""A check that the clients of a test end with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

CLIENT_ENDS_S = 10.0


def client_threads() -> set[threading.Thread]:
    """Returns the threads that keep clients of this process attached."""
    return {thread for thread in threading.enumerate() if thread.name == "pagetier-reconnect"}


@pytest.fixture(autouse=True)
def no_client_is_left() -> Iterator[None]:
    """Asserts that the clients of a test end with it: later tests count their descriptors."""
    before = client_threads()
    yield
    ends = time.monotonic() + CLIENT_ENDS_S
    while client_threads() - before:
        assert time.monotonic() < ends, "a client of this test still looks for its daemon"
        time.sleep(0.002)
