"""Tests which thread reads the responses of the daemon."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from child_process import in_child
from eventually import eventually
from pagetier.client.pending_request import PendingRequest
from pagetier.client.rpc import Requests
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.protocol import Answer, Locate, Located, Request

LONG_S = 60.0


class SlowLink:
    """A connection on which no response comes before `ends` is set."""

    def __init__(self) -> None:
        self.is_read, self.ends = threading.Event(), threading.Event()

    def read(self, seconds: float) -> list[Answer]:
        self.is_read.set()
        assert self.ends.wait(LONG_S)
        return []


class PlainLink:
    """A connection that counts its reads and records what is expected of the background thread."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.reads = 0
        self.stray = False

    def send(self, request: Request, timeout: float) -> None:
        """Takes a request."""

    def read(self, seconds: float) -> list[Answer]:
        self.reads += 1
        answers, self.answers = self.answers, []
        return answers

    def expect_stray(self) -> None:
        self.stray = True

    def expect_no_stray(self) -> None:
        self.stray = False


def asked(requests: Requests, link: PlainLink) -> PendingRequest[Answer]:
    """Returns a question to the fleet that was sent."""
    sent: PendingRequest[Answer] = PendingRequest(
        requests, cast(Link, link), lambda answer: answer, lambda _: Located(0, b"")
    )
    requests.ask(sent, lambda number: Locate(number, b"", b"", ()), 1.0)
    return sent


def test_a_poll_finds_a_response_that_has_arrived_without_the_background_thread() -> None:
    requests, link = Requests(), PlainLink()
    pending = asked(requests, link)
    assert not link.stray, "its caller may wait for it"
    link.answers = [Located(1, b"a size")]
    assert not pending.ready
    assert pending.poll()
    assert pending.wait(0.0) == Located(1, b"a size")
    assert (link.reads, link.stray) == (1, False)


def test_a_poll_leaves_a_response_to_the_background_thread() -> None:
    requests, link = Requests(), PlainLink()
    pending = asked(requests, link)
    for _ in range(3):
        assert not pending.poll()
    assert (link.reads, link.stray) == (1, True), "further polls are cheap"
    link.answers = [Located(1, b"a size")]
    requests.pump(cast(Link, link))
    assert pending.poll()
    assert not link.stray


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_a_wait_that_was_too_short_leaves_the_response_to_the_background_thread(seconds: float) -> None:
    requests, link = Requests(), PlainLink()
    assert asked(requests, link).wait(seconds) == Located(0, b"")
    assert link.stray


def test_a_response_is_read_for_another_request_too() -> None:
    requests, link = Requests(), PlainLink()
    first, second = asked(requests, link), asked(requests, link)
    link.answers = [Located(2, b"second"), Located(1, b"first")]
    assert second.wait(1.0) == Located(2, b"second")
    assert first.ready
    assert link.reads == 1


def test_responses_without_a_reader_are_left_to_the_background_thread() -> None:
    """Else the daemon, which serves no client that reads nothing, would stop for one that drops its questions."""
    requests, link = Requests(), PlainLink()
    for _ in range(8):
        asked(requests, link)
    assert not link.stray
    asked(requests, link)
    assert link.stray
    link.answers = [Located(number, b"") for number in range(1, 10)]
    requests.pump(cast(Link, link))
    assert not requests._waiting
    assert not link.stray


def test_a_request_that_cannot_be_sent_is_no_stray() -> None:
    class FullLink(PlainLink):
        def send(self, request: Request, timeout: float) -> None:
            raise LinkError("the daemon does not accept requests")

    requests, link = Requests(), PlainLink()
    for _ in range(8):
        asked(requests, link)
    assert asked(requests, FullLink()).unsent
    assert len(requests._strays) == 8


def test_a_callback_that_polls_leaves_nothing_behind_when_the_connection_ends() -> None:
    requests, link = Requests(), PlainLink()
    first, second = asked(requests, link), asked(requests, link)
    first.call = second.poll
    requests.fail_all()
    assert first.ready
    assert second.ready
    assert not requests._strays


def test_a_forked_child_takes_no_lock_of_its_parent() -> None:
    """Another thread of the parent may have had it, and the child has no such thread that would release it."""
    requests, link = Requests(), PlainLink()
    pending = asked(requests, link)
    taken, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with requests._lock:
            taken.set()
            assert ends.wait(LONG_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert taken.wait(LONG_S)

    def child() -> None:
        pending.leave()
        assert pending.poll()
        assert pending.wait(0.0) == Located(0, b"")

    try:
        assert in_child(child) == 0
    finally:
        ends.set()
        holder.join()
    assert not link.stray


def test_the_background_thread_waits_for_one_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it returned at once it would be called again at once, and keep the core that the other thread needs."""
    monkeypatch.setattr("pagetier.client.rpc._READ_S", 100 * LONG_S)
    requests, link = Requests(), SlowLink()
    threads = [threading.Thread(target=requests.pump, args=(cast(Link, link),), daemon=True) for _ in range(2)]
    threads[0].start()
    assert link.is_read.wait(LONG_S)
    threads[1].start()
    assert eventually(lambda: requests._sleeping == 1, LONG_S), "it returned, or reads beside the other one"
    link.ends.set()
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()
