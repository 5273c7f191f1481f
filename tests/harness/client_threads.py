"""A check that the clients and copiers of a test end with it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from eventually import eventually

CLIENT_ENDS_S = 20.0


def client_threads() -> set[threading.Thread]:
    """Returns the threads of clients that are not closed or still have to return their slot, and of copiers."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("pagetier-")}


@pytest.fixture(autouse=True)
def no_client_is_left() -> Iterator[None]:
    """Asserts that all clients and copiers of a test are closed or dropped.

    The thread of another client would look for its daemon forever, and that of a copier would disturb the next test.
    """
    before = client_threads()

    def all_ended() -> bool:
        gc.collect()  # closes the clients that only a cycle of references keeps, also one that a thread left just now
        return not client_threads() - before

    yield
    ended = not client_threads() - before or eventually(all_ended, CLIENT_ENDS_S)
    assert ended, f"a client or copier of the test is not closed: {client_threads() - before}"
