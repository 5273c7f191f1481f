"""Greetings to a daemon that is absent, rejects, misbehaves or is silent: LinkError in time, no descriptor left."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_daemon import Peer, refuse
from link_fixtures import HANGS_S, HELLO, HOUR_S, SOON_S, hang_up, linked, wait_for_end
from open_descriptors import open_descriptors
from pagetier.shm.daemon_link import Link, LinkError, RefusedError
from pagetier.shm.message_codec import pack
from pagetier.shm.protocol import BUILD, Findings, Observe
from pagetier.shm.socket_path import DefaultSocket
from virtual_clock import VirtualClock


@pytest.mark.parametrize("kind", ["nothing", "a file", "no listener", "a long name"])
def test_an_absent_daemon_is_an_error(kind: str, tmp_path: Path) -> None:
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


def test_a_folder_in_place_of_a_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(LinkError) as error:
        Link(tmp_path, 5)
    assert str(error.value) == f"{tmp_path}: it is a folder, not a socket: the daemon's may be {tmp_path}/pagetier.sock"


def test_a_process_with_too_many_open_files_keeps_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_socket(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    before = open_descriptors()
    monkeypatch.setattr(socket, "socket", refuse_socket)
    with pytest.raises(OSError, match="Too many open files"):
        Link(Path("s"), 5)
    assert open_descriptors() == before


def test_a_misspelt_variable_is_not_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGETIER_SOKET", str(tmp_path / "s"))
    before = open_descriptors()
    with pytest.raises(RefusedError, match="PAGETIER_SOKET is unknown; did you mean PAGETIER_SOCKET"):
        Link(DefaultSocket(tmp_path / "default"), 5)
    assert open_descriptors() == before
    with pytest.raises(LinkError, match="No such file"):
        Link(tmp_path / "named", 5)


def test_received_descriptors_are_not_inherited_by_other_programs() -> None:
    with linked() as (_, link):
        greeting = link.greet(HELLO, 5)
        assert greeting.welcome.slot == 0
        assert len(greeting.descriptors) == 3
        assert not any(map(os.get_inheritable, greeting.descriptors))
        for descriptor in greeting.descriptors:
            os.close(descriptor)


def say(data: bytes) -> Callable[[Peer], None]:
    """Returns a behaviour that answers the greeting with these bytes."""

    def behave(peer: Peer) -> None:
        peer.next()
        peer.connection.sendall(data)
        wait_for_end(peer)

    return behave


@pytest.mark.parametrize(
    ("behave", "says", "kind"),
    [
        (hang_up, "the daemon is gone", LinkError),
        (refuse("you may not"), "the daemon refuses: you may not", RefusedError),
        (say(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10), "not a pagetier daemon", LinkError),
        (say(b"\x07\0\0\0\x92\xa5ch\xff\xfe\xfd"), "not a pagetier daemon", LinkError),
        (say(b"\3\0\0\0\xa2hi"), "not a pagetier daemon", LinkError),
        (say(pack(Findings(1, []))), "not a pagetier daemon", RefusedError),
    ],
)
def test_a_greeting_without_welcome_is_an_error(
    behave: Callable[[Peer], None], says: str, kind: type[LinkError]
) -> None:
    with linked(behave) as (_, link):
        before = open_descriptors()
        with pytest.raises(kind, match=says):
            link.greet(HELLO, HOUR_S)
        assert open_descriptors() <= before


def test_a_greeting_without_an_answer_costs_one_timeout(virtual_clock: VirtualClock) -> None:
    with linked(wait_for_end) as (_, link):
        before, began = open_descriptors(), virtual_clock.now
        with pytest.raises(LinkError, match="the daemon does not answer"):
            link.greet(HELLO, SOON_S)
        assert virtual_clock.now - began == pytest.approx(SOON_S)
        assert open_descriptors() <= before


def welcome_with(count: int) -> Callable[[Peer], None]:
    def behave(peer: Peer) -> None:
        peer.welcome(count)
        wait_for_end(peer)

    return behave


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_welcome_with_too_few_descriptors_is_an_error(count: int) -> None:
    """The kernel drops descriptors that exceed the limit of open files."""
    with linked(welcome_with(count)) as (_, link):
        before = open_descriptors()
        with pytest.raises(LinkError, match=f"{count} descriptors were received"):
            link.greet(HELLO, 5)
        assert open_descriptors() == before


def test_an_observer_gets_two_descriptors() -> None:
    with linked(welcome_with(2)) as (_, link):
        for descriptor in link.greet(Observe(BUILD), 5).descriptors:
            os.close(descriptor)


def test_a_greeting_can_be_stopped() -> None:
    links: list[Link] = []

    def stop(peer: Peer) -> None:
        peer.next()
        links[0].stop()
        peer.over.wait(HANGS_S)

    with linked(stop) as (_, link):
        links.append(link)
        with pytest.raises(LinkError, match="the daemon does not answer"):
            link.greet(HELLO, HOUR_S)
