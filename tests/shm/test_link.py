"""A link to a daemon that refuses, lies, falls silent or hangs up: LinkError in time, and nothing left open."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dying import in_child
from pagetier.shm.link import Link, LinkError, RefusedError
from pagetier.shm.protocol import BUILD, Answer, Attach, Check, Findings, Flush, Observe, pack
from pretending import Peer, PretendedDaemon, refuse

HELLO = Attach(BUILD, 1, "test")
BIG = Flush(1, "x" * (4 << 20))
SOON_S = 0.2


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def linked(behave: Callable[[Peer], None] | None = None) -> Iterator[tuple[PretendedDaemon, Link]]:
    with PretendedDaemon(behave) as daemon:
        link = Link(daemon.socket, 5)
        while not daemon.peers:
            time.sleep(0.001)
        try:
            yield daemon, link
        finally:
            link.close()


def wait_for_end(peer: Peer) -> None:
    while peer.connection.recv(1 << 16):
        pass


def read_nothing(peer: Peer) -> None:
    peer.over.wait()


@pytest.mark.parametrize("kind", ["nothing", "a file", "no listener", "a long name"])
def test_nobody_there(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("s" * (200 if kind == "a long name" else 1))
    if kind == "a file":
        path.touch()
    if kind == "no listener":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(os.fspath(path))
    before = open_descriptors()
    with pytest.raises(LinkError, match="/s"):
        Link(path, 5)
    assert open_descriptors() == before


def test_a_greeting_brings_descriptors_that_no_other_program_inherits() -> None:
    with linked() as (_, link):
        greeting = link.greet(HELLO, 5)
        assert greeting.welcome.slot == 0
        assert len(greeting.descriptors) == 3
        assert not any(map(os.get_inheritable, greeting.descriptors))
        for descriptor in greeting.descriptors:
            os.close(descriptor)


def hang_up(_: Peer) -> None: ...


def talk_nonsense(peer: Peer) -> None:
    peer.next()
    peer.connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
    wait_for_end(peer)


def speak_another_version(peer: Peer) -> None:
    peer.next()
    peer.connection.sendall(b"\3\0\0\0\xa2hi")
    wait_for_end(peer)


def answer_something_else(peer: Peer) -> None:
    peer.next()
    peer.send(Findings(1, []))
    wait_for_end(peer)


@pytest.mark.parametrize(
    ("behave", "says", "kind"),
    [
        (hang_up, "the daemon is gone", LinkError),
        (wait_for_end, "the daemon does not answer", LinkError),
        (refuse("you may not"), "the daemon refuses: you may not", RefusedError),
        (talk_nonsense, "not a pagetier daemon", LinkError),
        (speak_another_version, "not a pagetier daemon", LinkError),
        (answer_something_else, "not a pagetier daemon", RefusedError),
    ],
)
def test_no_welcome(behave: Callable[[Peer], None], says: str, kind: type[LinkError]) -> None:
    with linked(behave) as (_, link):
        before, began = open_descriptors(), time.monotonic()
        with pytest.raises(kind, match=says):
            link.greet(HELLO, SOON_S)
        assert time.monotonic() - began < SOON_S + 0.3
        assert open_descriptors() <= before


def welcome_with(count: int) -> Callable[[Peer], None]:
    def behave(peer: Peer) -> None:
        peer.welcome(count)
        wait_for_end(peer)

    return behave


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_welcome_with_too_few_descriptors(count: int) -> None:
    """As when this process has too many files open: the kernel drops what does not fit."""
    with linked(welcome_with(count)) as (_, link):
        before = open_descriptors()
        with pytest.raises(LinkError, match=f"{count} descriptors came"):
            link.greet(HELLO, 5)
        assert open_descriptors() == before


def test_who_looks_gets_two_descriptors() -> None:
    with linked(welcome_with(2)) as (_, link):
        for descriptor in link.greet(Observe(BUILD), 5).descriptors:
            os.close(descriptor)


def test_a_greeting_can_be_stopped() -> None:
    with linked(wait_for_end) as (_, link):
        threading.Timer(0.05, link.stop).start()
        began = time.monotonic()
        with pytest.raises(LinkError):
            link.greet(HELLO, 5)
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("deadline", [0.0, -1.0, -0.5, SOON_S])
def test_a_peer_that_reads_nothing(deadline: float) -> None:
    """Within the deadline, whatever it is; half a message ends the link, as nothing can follow it."""
    with linked(read_nothing) as (_, link):
        began = time.monotonic()
        with pytest.raises(LinkError, match="takes no requests"):
            link.send(BIG, deadline)
        assert time.monotonic() - began < max(0.0, deadline) + 0.3
        assert not link.watch()


def test_a_message_that_could_not_begin_leaves_the_link_alone() -> None:
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
        assert half == 0 and watched == [], "it was stopped"
        link.stop()
        watcher.join()


def send_big(link: Link) -> None:
    with pytest.raises(LinkError):
        link.send(BIG, 1.0)


def test_nobody_waits_for_a_slow_sender_longer_than_the_deadline() -> None:
    with linked(read_nothing) as (_, link):
        slow = threading.Thread(target=send_big, args=(link,))
        slow.start()
        time.sleep(0.05)
        for deadline in (-1.0, 0.0, SOON_S):
            began = time.monotonic()
            with pytest.raises(LinkError, match="takes no requests"):
                link.send(Check(1), deadline)
            assert time.monotonic() - began < max(0.0, deadline) + 0.3
        slow.join()


def test_a_closed_link_is_of_no_use_and_no_harm() -> None:
    with linked() as (_, link):
        link.close()
        before = open_descriptors()
        with pytest.raises(LinkError, match="gone"):
            link.send(Check(1), 1)
        assert link.read(0.1) == []
        link.stop()
        link.close()
        assert open_descriptors() == before


def test_closing_frees_who_sends_and_who_reads() -> None:
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
        assert time.monotonic() - began < 1
        assert len(outcomes) == 2 and all("gone" in outcome for outcome in outcomes)


def test_links_closed_under_busy_threads() -> None:
    """Nothing but LinkError comes of it, and no descriptor of anybody else is written to or left open."""
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


def test_a_daemon_that_hangs_up_kills_nobody() -> None:
    """Also in a program that wants SIGPIPE, as command-line tools do."""
    with linked(hang_up) as (_, link):

        def child() -> None:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            with pytest.raises(LinkError, match="gone"):
                for _ in range(500):  # as long as the peer needs to hang up
                    link.send(Check(1), 1)
                    time.sleep(0.01)

        assert in_child(child) == 0


def test_answers_come_whole_however_they_are_cut() -> None:
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


def test_asking_takes_at_most_its_deadline() -> None:
    def answer_once(peer: Peer) -> None:
        peer.next()
        peer.send(Findings(1, ["all is well"]))
        wait_for_end(peer)

    with linked(answer_once) as (_, link):
        assert link.ask(Check(1), 5) == Findings(1, ["all is well"])
        began = time.monotonic()
        with pytest.raises(LinkError, match="does not answer"):
            link.ask(Check(2), SOON_S)
        assert time.monotonic() - began < SOON_S + 0.3


def test_watching_sees_only_what_is_meant_for_it() -> None:
    """Answers when a stray is expected; the end always; and stop()."""
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
        assert seen == [], "it is for who asked"
        link.expect_stray()
        deadline = time.monotonic() + 5
        while not seen and time.monotonic() < deadline:
            time.sleep(0.001)
        assert seen == [True]
        link.expect_no_stray()
        link.stop()
        watcher.join(5)
        assert seen == [True, False]


def test_a_forked_child_disowns_what_it_inherited() -> None:
    with linked() as (daemon, link):
        for descriptor in link.greet(HELLO, 5).descriptors:
            os.close(descriptor)
        before = open_descriptors()

        def child() -> None:
            link.disown()
            assert open_descriptors() == before - 2

        assert in_child(child) == 0
        daemon.peers[0].send(Findings(1, ["still here"]))
        assert link.read(5) == [Findings(1, ["still here"])]
