"""Tests which thread reads the responses of the daemon."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import pytest

from eventually import PATIENCE_S, eventually
from pagetier.client.pending_request import PendingRequest
from pagetier.client.rpc import Requests
from pagetier.shm.client_socket import Sending, SentRequest
from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import Answer, Flush, Flushed, Request


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

    def expect_no_stray(self) -> None:
        """Does nothing: there is no stray, and nothing watches this connection."""


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


class RecordedLink:
    """A connection whose responses the test writes. `watches` says when the background thread watches for responses."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.watches: list[bool] = []
        self.reader = 0

    def send(self, request: Request, timeout: float, owner: SentRequest) -> None:
        owner.sending = Sending(0)  # nothing is left to send

    def deliver(self, seconds: float, call: Callable[[Answer], object]) -> bool:
        while self.answers:
            call(self.answers.pop(0))
        return True

    def expect_stray(self) -> None:
        self.watches.append(True)

    def expect_no_stray(self) -> None:
        self.watches.append(False)


def test_the_background_thread_watches_for_responses_until_one_is_no_stray() -> None:
    requests, link = Requests(), RecordedLink()
    for _ in range(2):
        pending = PendingRequest(requests, cast(Link, link), lambda number: Flush(number, ""), lambda _: True, bool)
        pending.send_and_leave(PATIENCE_S)
        link.answers.append(Flushed(pending.number, 0, 0, []))
        requests.pump(cast(Link, link))
        assert pending.done
    assert link.watches == [True, True], "it stopped between two strays"
    requests.pump(cast(Link, link))
    assert link.watches == [True, True, False]
