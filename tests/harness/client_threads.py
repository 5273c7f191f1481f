"""A check that the clients of a test end with it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from eventually import eventually


def client_threads() -> set[threading.Thread]:
    """Returns the threads of clients that are not closed, or that still have to return their slot."""
    return {thread for thread in threading.enumerate() if thread.name == "pagetier-reconnect"}


def clients_end(before: set[threading.Thread]) -> bool:
    """Waits until there are no threads of clients but those of `before`."""

    def all_ended() -> bool:
        gc.collect()  # closes the clients that only a cycle of references keeps, also one that a thread left just now
        return not client_threads() - before

    return not client_threads() - before or eventually(all_ended)


@pytest.fixture(autouse=True)
def no_client_is_left() -> Iterator[None]:
    """Asserts that all clients of a test are closed: the thread of another one would look for its daemon forever."""
    before = client_threads()
    yield
    assert clients_end(before), "a client of the test is not closed"
