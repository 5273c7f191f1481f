"""A link that is closed, disconnected or inherited while threads use it raises LinkError and harms no other object."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable

import pytest

from child_process import in_child
from eventually import eventually
from link_fixtures import BIG, HELLO, HOUR_S, hang_up, linked, read_nothing, wait_for_end
from open_descriptors import open_descriptors
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.protocol import Check, Findings


def test_a_closed_link_rejects_calls_and_touches_no_other_descriptor() -> None:
    with linked() as (_, link):
        link.close()
        canary = os.eventfd(0, os.EFD_NONBLOCK)  # has the number of a descriptor that was closed
        with pytest.raises(LinkError, match="gone"):
            link.send(Check(1), 1)
        assert link.read(0.1) == []
        link.stop()
        link.close()
        with pytest.raises(BlockingIOError):
            os.eventfd_read(canary)
        os.close(canary)


def test_closing_ends_blocked_sends_and_reads() -> None:
    with linked(read_nothing) as (daemon, link):
        link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(16))  # recv() has no limit of its own
        outcomes: list[str] = []

        def attempt(work: Callable[[], object]) -> None:
            try:
                work()
            except LinkError as error:
                outcomes.append(str(error))

        works = [lambda: link.send(BIG, HOUR_S), lambda: link.read(HOUR_S)]
        threads = [threading.Thread(target=attempt, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        assert daemon.peers[0].connection.recv(1, socket.MSG_PEEK), "the send has begun"
        assert eventually(lambda: link.reader != 0), "the read has begun"
        link.close()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 2 and all("gone" in outcome for outcome in outcomes)


def close_while_threads_send(link: Link, ended: list[str]) -> None:
    """Closes a link to which four threads send, and asserts that none of them writes to another descriptor."""
    sent: list[int] = []

    def send_for_ever() -> None:
        try:
            while True:
                link.send(Check(1), HOUR_S)
                sent.append(1)
                link.stop()
                link.expect_stray()
        except LinkError as error:
            link.stop()
            ended.append(str(error))

    threads = [threading.Thread(target=send_for_ever) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(sent) > len(threads))
    link.close()
    canary = os.eventfd(0, os.EFD_NONBLOCK)
    for thread in threads:
        thread.join()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(canary)
    os.close(canary)


def test_links_closed_under_busy_threads() -> None:
    """Only LinkError is raised, and no descriptor of another object is written to or left open."""
    ended: list[str] = []
    for _ in range(30):
        with linked(wait_for_end) as (_, link):
            close_while_threads_send(link, ended)
    assert len(ended) == 30 * 4


def test_a_disconnected_daemon_does_not_kill_the_process_by_sigpipe() -> None:
    """Also in a program that does not ignore SIGPIPE, like command-line tools."""
    with linked(hang_up) as (_, link):
        # A child that is forked earlier would inherit the daemon's end and keep the connection open. The descriptor in
        # the daemon's socket object does not tell, because it becomes -1 just before the system closes the socket.
        assert link.watch()

        def child() -> None:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            with pytest.raises(LinkError, match="gone"):
                for _ in range(2):
                    link.send(Check(1), 1)

        assert in_child(child) == 0


def test_a_forked_child_disowns_the_inherited_link() -> None:
    with linked() as (daemon, link):
        for descriptor in link.greet(HELLO, 5).descriptors:
            os.close(descriptor)
        before = open_descriptors()

        def child() -> None:
            link.disown()
            assert open_descriptors().total() == before.total() - 2

        assert in_child(child) == 0
        daemon.peers[0].send(Findings(1, ["still here"]))
        assert link.read(5) == [Findings(1, ["still here"])]
