"""Requests and responses on a link: timeouts, partial messages, and the thread that receives each response."""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from link_fixtures import BIG, HELLO, HOUR_S, SOON_S, linked, never_block, read_nothing
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.message_codec import pack
from pagetier.shm.protocol import Answer, Check, Findings
from virtual_clock import VirtualClock, in_main_thread

TIMEOUTS = [0.0, -1.0, -0.5, SOON_S, HOUR_S]


@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_a_peer_that_reads_nothing_costs_one_timeout(virtual_clock: VirtualClock, timeout: float) -> None:
    """The send ends within its timeout. A partially sent message stops the link, because no other can follow it."""
    virtual_clock.is_stuck = in_main_thread  # the thread of a client of another test may still look for its daemon
    with linked(read_nothing) as (_, link):
        began = virtual_clock.now
        with pytest.raises(LinkError, match="does not accept requests"):
            link.send(BIG, timeout)
        assert virtual_clock.now - began == pytest.approx(max(0.0, timeout))
        assert not link.watch()
        with pytest.raises(LinkError, match="only in part"):
            link.detach(SOON_S)


def test_a_message_of_which_no_byte_was_sent_does_not_stop_the_link(virtual_clock: VirtualClock) -> None:
    with linked(read_nothing) as (daemon, link):
        sent = 0
        with pytest.raises(LinkError):
            while True:
                link.send(Check(7), SOON_S)
                sent += 1
        assert sent * len(pack(Check(7))) % len(pack(Check(7))) == 0
        daemon.hang_up()
        assert link.watch(), "the link was stopped"


def test_connecting_waits_for_room_in_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy daemon has a full queue for a moment: connecting waits for room, but not longer than the timeout."""
    path, limits = tmp_path / "socket", list[float]()

    class Watched(socket.socket):
        """Records for how long the kernel lets it wait."""

        def setsockopt(self, level: int, name: int, value: Any) -> None:  # type: ignore[override]
            if name == socket.SO_SNDTIMEO:
                seconds, microseconds = struct.unpack("@ll", value)
                limits.append(seconds + microseconds / 1e6)
            super().setsockopt(level, name, value)

    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as crowd:
        listener.bind(str(path))
        listener.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                one = crowd.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(str(path))
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Watched)
            for timeout in (-1.0, 0.0, SOON_S):
                with pytest.raises(LinkError, match="connection queue is full"):
                    Link(path, timeout)
        assert limits == [0.001, 0.001, SOON_S], "0 would mean no limit"
        letting_in = threading.Timer(SOON_S, lambda: crowd.enter_context(listener.accept()[0]))
        letting_in.start()
        Link(path, HOUR_S).close()
        letting_in.join()


def send_big(link: Link) -> None:
    with pytest.raises(LinkError, match="gone"):
        link.send(BIG, 2 * HOUR_S)  # longer than the waits of the others, in which the time passes


@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_a_send_waits_for_another_sender_at_most_its_timeout(virtual_clock: VirtualClock, timeout: float) -> None:
    with linked(read_nothing) as (daemon, link):
        slow = threading.Thread(target=send_big, args=(link,))
        virtual_clock.is_stuck = in_main_thread  # the other send waits for the peer without an end
        slow.start()
        assert daemon.peers[0].connection.recv(1, socket.MSG_PEEK), "the other send has not begun"
        began = virtual_clock.now
        with pytest.raises(LinkError, match="does not accept requests"):
            link.send(Check(1), timeout)
        assert virtual_clock.now - began == pytest.approx(max(0.0, timeout))
        assert slow.is_alive()
        link.close()
        slow.join()


def test_responses_that_arrive_in_pieces_are_reassembled() -> None:
    answers = [Findings(number, ["x" * number]) for number in range(20)]
    data = b"".join(map(pack, answers))
    with linked(read_nothing) as (daemon, link):
        got: list[Answer] = []
        for at in range(0, len(data), 7):
            daemon.peers[0].connection.sendall(data[at : at + 7])
            got += link.read(HOUR_S)
        assert got == answers
        assert link.read(0.0) == []


def test_asking_takes_at_most_its_timeout(virtual_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with linked(read_nothing) as (daemon, link):
        never_block(monkeypatch)
        daemon.peers[0].send(Findings(1, ["all is well"]))
        began = virtual_clock.now
        assert link.ask(Check(1), HOUR_S) == Findings(1, ["all is well"])
        assert virtual_clock.now == began
        with pytest.raises(LinkError, match="does not answer"):
            link.ask(Check(2), SOON_S)
        assert virtual_clock.now - began == pytest.approx(SOON_S)


def test_watching_ignores_responses_that_other_threads_read(virtual_clock: VirtualClock) -> None:
    """It returns for responses only if a stray one is expected, and always for the end of the connection and stop()."""
    with linked() as (daemon, link):
        virtual_clock.is_stuck = lambda: False
        for descriptor in link.greet(HELLO, HOUR_S).descriptors:
            os.close(descriptor)
        daemon.peers[0].send(Findings(1, []))
        steps = [link.stop, link.expect_stray]
        virtual_clock.is_stuck = lambda: bool(steps.pop()())  # only the step ends the wait
        assert link.watch() and steps == [link.stop], "watch() returned for a response of another thread"
        assert link.read(HOUR_S) == [Findings(1, [])]
        link.expect_no_stray()
        assert not link.watch() and not steps


def test_a_thread_that_watches_for_responses_is_woken_for_the_first_stray_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with linked() as (daemon, link):
        for descriptor in link.greet(HELLO, HOUR_S).descriptors:
            os.close(descriptor)
        woken: list[None] = []
        monkeypatch.setattr(link, "_wake_up", lambda: woken.append(None))
        link.expect_stray()
        assert len(woken) == 1
        daemon.peers[0].send(Findings(1, []))
        assert link.watch() and link.read(HOUR_S)
        link.expect_stray()
        assert len(woken) == 1, "it waits for responses already"
        link.expect_no_stray()
        link.expect_stray()
        assert len(woken) == 2
