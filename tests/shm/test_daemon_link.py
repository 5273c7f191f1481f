"""Requests and responses on a link: timeouts, partial messages, and the thread that receives each response."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from fake_daemon import Peer
from link_fixtures import BIG, HELLO, SLACK_S, SOON_S, linked, read_nothing, wait_for_end
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.message_codec import pack
from pagetier.shm.protocol import Answer, Check, Findings


@pytest.mark.parametrize("timeout", [0.0, -1.0, -0.5, SOON_S])
def test_a_peer_that_reads_nothing_costs_one_timeout(timeout: float) -> None:
    """The send ends within its timeout. A partially sent message stops the link, because no other can follow it."""
    with linked(read_nothing) as (_, link):
        began = time.monotonic()
        with pytest.raises(LinkError, match="does not accept requests"):
            link.send(BIG, timeout)
        assert time.monotonic() - began < max(0.0, timeout) + SLACK_S
        assert not link.watch()
        with pytest.raises(LinkError, match="only in part"):
            link.detach(SOON_S)


def test_a_message_of_which_no_byte_was_sent_does_not_stop_the_link() -> None:
    with linked(read_nothing) as (_, link):
        sent = 0
        with pytest.raises(LinkError):
            while True:
                link.send(Check(7), 0.05)
                sent += 1
        watched: list[bool] = []
        watcher = threading.Thread(target=lambda: watched.append(link.watch()))
        watcher.start()
        watcher.join(0.1)
        half = sent * len(pack(Check(7))) % len(pack(Check(7)))
        assert half == 0 and watched == [], "the link was stopped"
        link.stop()
        watcher.join()


def test_connecting_waits_for_room_in_the_queue(tmp_path: Path) -> None:
    """A busy daemon has a full queue for a moment: connecting waits for room, but not longer than the timeout."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as crowd:
        listener.bind(str(path))
        listener.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                one = crowd.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(str(path))
        for timeout in (-1.0, 0.0, SOON_S):
            began = time.monotonic()
            with pytest.raises(LinkError, match="connection queue is full"):
                Link(path, timeout)
            assert timeout * 0.9 < time.monotonic() - began < max(0.0, timeout) + SLACK_S
        letting_in = threading.Timer(SOON_S, lambda: crowd.enter_context(listener.accept()[0]))
        letting_in.start()
        Link(path, 30.0).close()
        letting_in.join()


def send_big(link: Link) -> None:
    with pytest.raises(LinkError, match="gone"):
        link.send(BIG, 30.0)


def test_a_send_waits_for_another_sender_at_most_its_timeout() -> None:
    with linked(read_nothing) as (daemon, link):
        slow = threading.Thread(target=send_big, args=(link,))
        slow.start()
        assert daemon.peers[0].connection.recv(1, socket.MSG_PEEK), "the other send has not begun"
        for timeout in (-1.0, 0.0, SOON_S):
            began = time.monotonic()
            with pytest.raises(LinkError, match="does not accept requests"):
                link.send(Check(1), timeout)
            assert time.monotonic() - began < max(0.0, timeout) + SLACK_S
        assert slow.is_alive()
        link.close()
        slow.join()


def test_responses_that_arrive_in_pieces_are_reassembled() -> None:
    answers = [Findings(number, ["x" * number]) for number in range(20)]

    def dribble(peer: Peer) -> None:
        data = b"".join(map(pack, answers))
        for at in range(0, len(data), 7):
            peer.connection.sendall(data[at : at + 7])
            time.sleep(0.0005)
        wait_for_end(peer)

    with linked(dribble) as (_, link):
        got: list[Answer] = []
        while len(got) < len(answers):
            got += link.read(5)
        assert got == answers
        assert link.read(0.0) == []


def test_asking_takes_at_most_its_timeout() -> None:
    def answer_once(peer: Peer) -> None:
        peer.next()
        peer.send(Findings(1, ["all is well"]))
        wait_for_end(peer)

    with linked(answer_once) as (_, link):
        assert link.ask(Check(1), 5) == Findings(1, ["all is well"])
        began = time.monotonic()
        with pytest.raises(LinkError, match="does not answer"):
            link.ask(Check(2), SOON_S)
        assert time.monotonic() - began < SOON_S + SLACK_S


def test_watching_ignores_responses_that_other_threads_read() -> None:
    """It returns for responses only if a stray one is expected, and always for the end of the connection and stop()."""
    with linked() as (daemon, link):
        for descriptor in link.greet(HELLO, 5).descriptors:
            os.close(descriptor)
        seen: list[bool] = []

        def watch() -> None:
            while link.watch():
                seen.append(bool(link.read(0)))
            seen.append(False)

        watcher = threading.Thread(target=watch)
        watcher.start()
        daemon.peers[0].send(Findings(1, []))
        watcher.join(0.1)
        assert seen == [], "watch() returned for a response of another thread"
        link.expect_stray()
        ends = time.monotonic() + 5
        while not seen and time.monotonic() < ends:
            time.sleep(0.001)
        assert seen == [True]
        link.expect_no_stray()
        link.stop()
        watcher.join(5)
        assert seen == [True, False]
