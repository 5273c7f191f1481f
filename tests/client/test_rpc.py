"""Tests which thread reads the responses of the daemon."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import pytest

from eventually import PATIENCE_S, eventually
from pagetier.client.rpc import Requests
from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import Answer


class SlowLink:
    """A connection on which no response comes before `ends` is set."""

    def __init__(self) -> None:
        self.is_read, self.ends = threading.Event(), threading.Event()
        self.reader = 0

    def deliver(self, seconds: float, call: Callable[[Answer], object]) -> bool:
        if self.is_read.is_set():
            return False
        self.reader = threading.get_ident()
        self.is_read.set()
        assert self.ends.wait(PATIENCE_S)
        return True


def test_the_background_thread_waits_for_one_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it returned at once it would be called again at once, and keep the core that the other thread needs."""
    monkeypatch.setattr("pagetier.client.rpc._READ_S", 100 * PATIENCE_S)
    requests, link = Requests(), SlowLink()
    threads = [threading.Thread(target=requests.pump, args=(cast(Link, link),), daemon=True) for _ in range(2)]
    threads[0].start()
    assert link.is_read.wait(PATIENCE_S)
    threads[1].start()
    assert eventually(lambda: requests._changed.is_awaited), "it returned, or reads beside the other one"
    link.ends.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
