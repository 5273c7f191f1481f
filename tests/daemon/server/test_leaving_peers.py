"""Tests slots of peers that leave while they attach: they are free at once, and never while they may be in use."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from eventually import eventually
from in_process_server import Peer
from pagetier.shm._core import SLOTS
from pagetier.shm.protocol import BUILD, Attach, Check, Detach, Detached, Findings, Welcome
from running_daemon import RunningDaemon

ROUNDS = 3 * SLOTS
CROWD = 60  # fewer than the limit of connections without a greeting


def attach(token: int) -> Attach:
    return Attach(BUILD, token, "test")


def is_all_free(path: Path) -> bool:
    """Returns whether a new session gets the first slot."""
    with Peer(path) as peer:
        slot = peer.attach(1 << 40)
        assert peer.ask(Detach(1)) == Detached(1)
        return slot == 0


def test_a_detach_with_a_number_is_confirmed_once_the_slot_is_free(path: Path) -> None:
    with Peer(path) as peer, Peer(path) as other:
        slot = peer.attach(1)
        assert peer.ask(Detach(7)) == Detached(7)
        assert other.attach(2) == slot
        assert peer.ask(Check(1)) == Findings(1, []), "it stays connected"
        assert other.ask(Detach(), Check(1)) == Findings(1, []), "a detach without a number is not answered"


def test_a_detach_after_the_greeting_is_read(path: Path) -> None:
    for token in range(ROUNDS):
        with Peer(path) as peer:
            assert isinstance(peer.ask(attach(token), Detach(1)), Welcome)
            assert peer.answer() == Detached(1)
    assert is_all_free(path)


@pytest.mark.parametrize("goodbye", [(), (Detach(1),), (Detach(),)], ids=["none", "numbered", "plain"])
def test_a_peer_that_left_before_its_response_has_no_slot(goodbye: tuple[Detach, ...]) -> None:
    """Its Attach is read after its end, and no process ever receives the segments of this slot."""
    with RunningDaemon() as daemon:
        daemon.signal(signal.SIGSTOP)
        for token in range(CROWD):
            with Peer(daemon.socket) as peer:
                peer.send(attach(token), *goodbye)
        daemon.signal(signal.SIGCONT)
        assert daemon.slots() == [], "observers are answered after them"
        assert "event=peer_refused" not in daemon.log.read_text(), "leaving is no fault"


def test_a_slot_in_use_stays_when_an_old_connection_of_its_session_is_closed(path: Path) -> None:
    with Peer(path) as uses, Peer(path) as other:
        slot = uses.attach(1)
        for _ in range(20):
            with Peer(path) as old:
                old.send(attach(1))
        assert other.attach(2) != slot
        assert other.ask(Detach(1)) == Detached(1)
        assert uses.ask(Detach(1)) == Detached(1), "the slot is still its own"
    assert is_all_free(path)


def test_a_detach_of_a_session_that_leaves_while_it_attaches_again_is_read(path: Path) -> None:
    for token in range(20):
        with Peer(path) as first:
            first.attach(token)
        with Peer(path) as again:
            again.send(attach(token), Detach(1))
    assert eventually(lambda: is_all_free(path)), "the last two connections may be read in any order"
