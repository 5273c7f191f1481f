"""Tests the control socket against misbehaving peers: others are served, and each error names its reason."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from client_threads import client_threads, clients_end
from eventually import eventually
from in_process_server import SMALL, Peer, message, see_peers_off, serves
from pagetier.client import Client
from pagetier.daemon.common import loop_clock
from pagetier.daemon.config.schema import AccessOptions, Config
from pagetier.daemon.index.service import Service
from pagetier.daemon.server.control_socket import Server
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.shm._core import FORMAT, KEY_BYTES, page_requests
from pagetier.shm.protocol import (
    BUILD,
    GREETING_LIMIT,
    PROTOCOL,
    Attach,
    Check,
    Detach,
    Findings,
    Flush,
    Flushed,
    Observe,
    Prompt,
    Refusal,
    Request,
    Reserve,
    Reserved,
    Space,
    Welcome,
)
from pagetier.shm.segments import SegmentRequest, take
from running_daemon import namespace

PATIENCE_S = 1.5
SPACE = Space(b"d" * KEY_BYTES, "space", 16)
OTHER_BUILDS = (
    Attach("pagetier protocol 9 format 9", 1, "new"),
    Attach(f"pagetier protocol {PROTOCOL - 1} format {FORMAT}", 1, "old"),
    Observe("pagetier 9"),
)


@asynccontextmanager
async def peer_of_impatient_server(folder: Path) -> AsyncIterator[Peer]:
    """Yields a peer whose calls never wait. The server, which waits for greetings briefly, runs in the test's loop."""
    segments = take(SegmentRequest(f"pagetier-test-{secrets.token_hex(6)}", SMALL, BUILD))
    path = folder / "pagetier.sock"
    server = Server(path, AccessOptions(), PATIENCE_S)
    service = Service(segments, Config(socket=path), StatusPublisher(segments.owner), asyncio.get_running_loop())
    try:
        await server.start(service)
        with Peer(path) as peer:
            peer.socket.settimeout(0)
            yield peer
        await see_peers_off()
    finally:
        server.stop()
        service.close()
        segments.remove()


@pytest.fixture
def engine(path: Path) -> Iterator[Peer]:
    """Yields an attached peer."""
    with Peer(path) as peer:
        peer.attach()
        yield peer
        peer.send(Detach())


HUGE = struct.pack("<Q", 1 << 63)


def reserve(number: int = 1, **fields: Any) -> Reserve:
    """Returns a request for a page of 4,096 bytes, changed by `fields`."""
    pages = page_requests(os.urandom(KEY_BYTES), struct.pack("<Q", 4096))
    request = {"space": SPACE, "part": 0, "parts": 1, "pages": pages}
    return Reserve(number, **{**request, **fields})


def refusal(path: Path, *said: Request | bytes) -> str:
    """Returns the reason for which a new peer is disconnected after these messages."""
    with Peer(path) as peer:
        answer = peer.ask(*said)
        assert isinstance(answer, Refusal)
        assert peer.answer() is None
        return answer.reason


# --- garbage ---------------------------------------------------------------------------------------------------------


def test_garbage_is_rejected_and_others_are_served(path: Path, engine: Peer) -> None:
    for seed in range(50):
        with Peer(path) as bad:
            bad.send(random.Random(seed).randbytes(200))
    assert isinstance(engine.ask(reserve()), Reserved)
    assert serves(path)


def test_garbage_in_a_well_formed_message_gets_a_reason(path: Path) -> None:
    no_text = b"\x92\xa5ch\xff\xfe\xfd\x01"
    for nonsense in (b"\xc1", no_text, b"", b"\x93\x01\x02\x03", b"\x81\xa1a\x01", os.urandom(64)):
        assert BUILD in refusal(path, struct.pack("<I", len(nonsense)) + nonsense)


def test_a_huge_length_is_refused_before_its_bytes_come(path: Path) -> None:
    assert str(GREETING_LIMIT) in refusal(path, struct.pack("<I", GREETING_LIMIT + 1))


@pytest.mark.parametrize("request_", [message("no such request", 1), reserve()], ids=["unknown", "store"])
def test_a_request_that_an_observer_may_not_send_ends_its_connection(path: Path, request_: Request | bytes) -> None:
    with Peer(path) as peer:
        peer.observe()
        assert peer.ask(request_) is None
    assert serves(path)


def test_messages_in_pieces_are_put_together(path: Path) -> None:
    with Peer(path) as peer:
        for byte in message("attach", BUILD, 7, "slow"):
            peer.send(bytes([byte]))
        assert peer.answer() is not None
        many = [reserve(number) for number in range(20)]
        peer.send(*many)
        answers = [peer.answer() for _ in many]
        assert [answer.number for answer in answers if isinstance(answer, Reserved)] == list(range(20))
        peer.send(Detach())


# --- greetings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", b"\x40", struct.pack("<I", 64), message("attach", BUILD, 1, "x")[:-1]])
@pytest.mark.usefixtures("virtual_time")
async def test_a_peer_without_a_greeting_is_disconnected(tmp_path: Path, said: bytes) -> None:
    async with peer_of_impatient_server(tmp_path) as peer:
        peer.send(said)
        await loop_clock.pause(0.99 * PATIENCE_S)
        with pytest.raises(BlockingIOError):
            peer.answer()
        await loop_clock.pause(0.02 * PATIENCE_S)
        assert peer.answer() is None


@pytest.mark.usefixtures("virtual_time")
async def test_a_peer_may_be_silent_after_its_greeting(tmp_path: Path) -> None:
    async with peer_of_impatient_server(tmp_path) as peer:
        peer.send(Observe(BUILD))
        await loop_clock.pause(2 * PATIENCE_S)
        assert isinstance(peer.answer(), Welcome)
        peer.send(Check(3))
        await loop_clock.pause(PATIENCE_S)
        assert peer.answer() == Findings(3, [])


def test_nothing_is_answered_before_the_greeting(path: Path) -> None:
    for request in (Check(1), Flush(1, None), reserve(), Detach()):
        assert refusal(path, request)


@pytest.mark.parametrize("late", [Detach(), reserve(7)], ids=["goodbye", "store"])
def test_a_detached_slot_cannot_be_used_over_another_connection(path: Path, late: Detach | Reserve) -> None:
    with Peer(path) as one, Peer(path) as other, Peer(path) as next_one:
        given = [peer.attach() for peer in (one, other)]
        one.send(Detach())
        assert one.ask(Check(1)) == Findings(1, [])  # by now the slot is free
        there = next_one.attach(2)
        assert there == given[0] == given[1]
        assert other.ask(late) is None
        with Peer(path) as last:
            assert last.attach(3) != there
            assert isinstance(next_one.ask(reserve(8)), Reserved)
            last.send(Detach())
            next_one.send(Detach())


def test_a_second_greeting_ends_the_connection(path: Path) -> None:
    with Peer(path) as peer:
        peer.attach(1)
        assert peer.ask(Attach(BUILD, 2, "peer")) is None
    assert refusal(path, OTHER_BUILDS[0], Attach(BUILD, 1, "peer"))


@pytest.mark.parametrize("request_", OTHER_BUILDS)
def test_another_build_is_refused_with_both_versions(path: Path, request_: Attach | Observe) -> None:
    reason = refusal(path, request_)
    assert repr(BUILD) in reason and repr(request_.build) in reason


def test_a_greeting_with_unknown_fields_is_refused_by_its_build(path: Path) -> None:
    assert "protocol 2" in refusal(
        path, message("attach", "pagetier protocol 2 format 1", 1, "name", b"", 0, {"gpu": 3})
    )


def test_a_client_of_another_build_continues_without_the_daemon(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    others = client_threads()
    with monkeypatch.context() as another:
        another.setattr("pagetier.client.own_attachment.BUILD", "pagetier protocol 9 format 9")
        with Client(path) as client:
            assert eventually(lambda: "cannot attach" in caplog.text) and not client.attached
            with client.match(namespace().keys(range(16))) as match:
                assert len(match) == 0
    # Closed while it attached, it asks until a daemon of its build has said that it has no slot.
    assert clients_end(others)


# --- invalid requests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"parts": 0}, "part 0 of 0"),
        ({"part": 2, "parts": 2}, "part 2 of 2"),
        ({"parts": 33}, "at most 32 parts"),
        ({"prompts": (Prompt(1),)}, "the begins of 1 prompts"),
        ({"pages": page_requests(bytes(KEY_BYTES), bytes(8))}, "a page of 0 bytes cannot be stored"),
        (
            {"pages": page_requests(bytes(KEY_BYTES), struct.pack("<Q", 1 << 63))},
            f"a page of {1 << 63} bytes never fits, and waiting does not help",
        ),
    ],
)
def test_an_invalid_request_is_rejected_with_a_reason(engine: Peer, fields: dict[str, Any], reason: str) -> None:
    answer = engine.ask(reserve(5, **fields))
    assert isinstance(answer, Reserved)
    assert answer.number == 5
    assert reason in answer.reason
    assert isinstance(engine.ask(reserve(6)), Reserved)


def test_control_characters_in_names_are_replaced(path: Path) -> None:
    with Peer(path) as peer:
        peer.attach(name="a\0b\x1b[2J" + "é" * 100)
        assert isinstance(peer.ask(reserve(space=Space(b"n" * KEY_BYTES, "x\0\x1by", 16))), Reserved)
        assert peer.ask(Flush(1, "x??y")) == Flushed(1, 0, 1, ["x??y"])
        peer.send(Detach())


def test_a_greeting_may_have_any_token(path: Path) -> None:
    for token in (-1, 0, (1 << 64) - 1):
        with Peer(path) as peer:
            peer.attach(token)
            peer.send(Detach())
    assert refusal(path, Attach(BUILD, 1, "peer", b"seven.."))


def test_a_full_table_of_namespaces_is_the_reason(engine: Peer) -> None:
    reasons = []
    for number in range(5):
        answer = engine.ask(reserve(number, space=Space(bytes([number]) * KEY_BYTES, f"s{number}", 16)))
        assert isinstance(answer, Reserved)
        reasons.append(answer.reason)
    assert reasons[:4] == [""] * 4
    assert "namespaces is full" in reasons[4]
