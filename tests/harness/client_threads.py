"""A check that the clients of a test end with it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from eventually import eventually

CLIENT_ENDS_S = 20.0


def client_threads() -> set[threading.Thread]:
    """Returns the threads of clients that are not closed, or that still have to return their slot."""
    return {thread for thread in threading.enumerate() if thread.name == "pagetier-reconnect"}


@pytest.fixture(autouse=True)
def no_client_is_left() -> Iterator[None]:
    """Asserts that all clients of a test are closed: the thread of another one would look for its daemon forever."""
    before = client_threads()

    def all_ended() -> bool:
        gc.collect()  # closes the clients that only a cycle of references keeps, also one that a thread left just now
        return not client_threads() - before

    yield
    assert not client_threads() - before or eventually(all_ended, CLIENT_ENDS_S), "a client of the test is not closed"
