"""A link that is closed, disconnected or inherited while threads use it raises LinkError and harms no other object."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from child_process import in_child
from link_fixtures import BIG, HELLO, SLACK_S, hang_up, linked, read_nothing, wait_for_end
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
    with linked(read_nothing) as (_, link):
        outcomes: list[str] = []

        def attempt(work: Callable[[], object]) -> None:
            try:
                work()
            except LinkError as error:
                outcomes.append(str(error))

        works = [lambda: link.send(BIG, 10), lambda: link.read(10)]
        threads = [threading.Thread(target=attempt, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        began = time.monotonic()
        link.close()
        for thread in threads:
            thread.join()
        assert time.monotonic() - began < SLACK_S
        assert len(outcomes) == 2 and all("gone" in outcome for outcome in outcomes)


def test_links_closed_under_busy_threads() -> None:
    """Only LinkError is raised, and no descriptor of another object is written to or left open."""
    ended: list[str] = []

    def send_for_ever(link: Link) -> None:
        try:
            while True:
                link.send(Check(1), 0.01)
                link.stop()
                link.expect_stray()
        except LinkError as error:
            link.stop()
            ended.append(str(error))

    for _ in range(30):
        with linked(wait_for_end) as (_, link):
            threads = [threading.Thread(target=send_for_ever, args=(link,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(0.002)
            link.close()
            canary = os.eventfd(0, os.EFD_NONBLOCK)
            for thread in threads:
                thread.join()
            with pytest.raises(BlockingIOError):
                os.eventfd_read(canary)
            os.close(canary)
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
