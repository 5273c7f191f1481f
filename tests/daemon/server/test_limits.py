"""Tests the limits of connections and of messages, and the turns that each connection gets."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from eventually import PATIENCE_S
from in_process_server import Peer
from pagetier.daemon.host.peer_credentials import Caller, Rights
from pagetier.daemon.server.limits import MOST_OF_PROCESS, MOST_SILENT, MOST_UNFINISHED, MOST_WATCHING, ConnectionLimits
from pagetier.shm._core import KEY_BYTES, page_requests
from pagetier.shm.message_codec import pack
from pagetier.shm.protocol import (
    GREETING_LIMIT,
    REQUEST_LIMIT,
    Check,
    Detach,
    Fetch,
    Fetched,
    Findings,
    Reserve,
    Reserved,
    Space,
)


def caller(pid: int = 1, uid: int = 7) -> Caller:
    return Caller(pid, uid, frozenset())


def enter(
    gate: ConnectionLimits, peer: Caller, rights: Rights = Rights.ATTACH, end: Callable[[str], None] = print
) -> str:
    """Returns why the connection is refused."""
    return gate.enter(peer, rights, end)


def test_the_oldest_silent_connection_of_a_user_is_closed() -> None:
    gate, messages = ConnectionLimits(10 * MOST_SILENT), [list[str]() for _ in range(MOST_SILENT + 1)]
    ends = [many.append for many in messages]
    for number in range(MOST_SILENT):
        assert enter(gate, caller(number), end=ends[number]) == ""
    gate.greeted(caller(0), ends[0])
    assert enter(gate, caller(1000), end=ends[-1]) == ""
    assert not any(messages), "there was room for one"
    late = list[str]()
    assert enter(gate, caller(1001, uid=8), end=late.append) == ""
    assert not any(messages), "another user has its own limit"
    assert enter(gate, caller(1002), end=lambda _: late.append("")) == ""
    assert late == []
    assert [number for number, said in enumerate(messages) if said] == [1]


def test_connections_are_limited_for_a_process_and_in_total() -> None:
    gate = ConnectionLimits(MOST_OF_PROCESS + 2)
    for _ in range(MOST_OF_PROCESS):
        assert enter(gate, caller()) == ""
        gate.greeted(caller(), print)
    assert enter(gate, caller()) == f"this process has {MOST_OF_PROCESS} connections, the most for one process"
    assert (enter(gate, caller(2)), enter(gate, caller(3))) == ("", "")
    assert enter(gate, caller(4)) == f"there are {MOST_OF_PROCESS + 2} connections, the most for this daemon"
    gate.leave(caller(), print)
    assert enter(gate, caller()) == ""


def test_processes_that_are_not_visible_have_limits_of_their_own() -> None:
    """All of them have PID 0; the kernel's IDs tell them apart. A PID is no kernel ID."""
    one, other = (Caller(0, 7, frozenset(), kernel_id) for kernel_id in (500, 501))
    gate = ConnectionLimits(4 * MOST_OF_PROCESS)
    for _ in range(MOST_OF_PROCESS):
        assert enter(gate, one) == ""
        gate.greeted(one, print)
    assert "the most for one process" in enter(gate, one)
    assert enter(gate, other) == "" and enter(gate, caller(500)) == ""
    ends = [list[str]().append for _ in range(3)]
    assert gate.count_incomplete(one, ends[0], MOST_UNFINISHED) == ""
    assert gate.count_incomplete(other, ends[1], MOST_UNFINISHED) == ""
    assert "incomplete messages" in gate.count_incomplete(one, ends[2], 1)


def test_users_who_may_not_attach_have_their_own_limits() -> None:
    gate, ends = ConnectionLimits(4 * MOST_WATCHING), [list[str]().append for _ in range(2 * MOST_WATCHING + 1)]
    last = ends.pop()
    for at, end in enumerate(ends):
        peer = caller(pid=at, uid=at // MOST_WATCHING)
        assert enter(gate, peer, Rights.WATCH, end) == ""
        gate.greeted(peer, end)
        if at == MOST_WATCHING - 1:
            refusal = f"user 0 may not attach and has {MOST_WATCHING} connections"
            assert enter(gate, caller(1000, uid=0), Rights.WATCH, last) == refusal
    refusal = f"users who may not attach have {2 * MOST_WATCHING} connections"
    assert enter(gate, caller(1000, uid=2), Rights.NOTHING, last) == refusal
    assert enter(gate, caller(1000, uid=0)) == "", "the limit is only for users who may not attach"
    gate.leave(caller(0, uid=0), ends[0])
    assert enter(gate, caller(1000, uid=2), Rights.NOTHING, last) == ""


# --- a real socket ---------------------------------------------------------------------------------------------------


def test_many_requests_are_all_answered_in_order(path: Path) -> None:
    """The requests take more than one turn and arrive in one piece."""
    with Peer(path) as peer, Peer(path) as other:
        peer.attach()
        other.observe()
        space = Space(b"d" * KEY_BYTES, "space", 16)
        pages = page_requests(bytes(KEY_BYTES * 60), struct.pack("<Q", 4096) * 60)
        peer.send(*[Reserve(number, space, 0, 1, pages) for number in range(80)])
        assert other.ask(Check(1)) == Findings(1, [])
        answers = [peer.answer() for _ in range(80)]
        assert [answer.number for answer in answers if isinstance(answer, Reserved)] == list(range(80))
        peer.send(Detach())


def test_no_requests_are_read_from_a_peer_that_reads_no_responses(path: Path) -> None:
    """It continues where it stopped as soon as the peer reads."""
    with Peer(path) as deaf, Peer(path) as other:
        deaf.observe()
        other.observe()
        deaf.socket.setblocking(False)
        sent, rest, is_stuck = 0, b"", False
        while not is_stuck:
            while not (rest := unsent(deaf, rest or pack(Check(sent)))):
                sent += 1
            assert [other.ask(Check(turn)) for turn in range(10)] == [Findings(turn, []) for turn in range(10)]
            is_stuck = len(rest) == len(rest := unsent(deaf, rest))
            sent += not rest
            assert sent < 10_000_000
        deaf.socket.settimeout(PATIENCE_S)
        assert [deaf.answer() for _ in range(sent)] == [Findings(number, []) for number in range(sent)]
        assert deaf.ask(rest) == Findings(sent, [])


def unsent(peer: Peer, data: bytes) -> bytes:
    """Sends as much as the server takes without a wait, and returns the rest."""
    with suppress(BlockingIOError):
        while data:
            data = data[peer.socket.send(data) :]
    return data


def test_messages_of_an_observer_are_limited(path: Path) -> None:
    with Peer(path) as peer:
        peer.observe()
        assert peer.ask(struct.pack("<I", GREETING_LIMIT + 1)) is None


def test_incomplete_messages_are_limited_over_all_connections_of_a_process(path: Path) -> None:
    """A process that sends too much is disconnected; its other connections continue.

    The requests are as long as half a million keys, which would take a busy machine a minute each: these are rejected.
    """
    request = pack(Fetch(1, bytes(KEY_BYTES * (REQUEST_LIMIT // 33) + 1), 0.0))
    with ExitStack() as stack:
        other, *peers = [stack.enter_context(Peer(path)) for _ in range(2 + MOST_UNFINISHED // len(request))]
        for peer in (other, *peers):
            peer.attach()
        for peer in peers[:-1]:
            peer.send(request[:-1])
        assert other.ask(Check(1)) == Findings(1, []), "the daemon has read the bytes of the others"
        with suppress(OSError):
            peers[-1].send(request[:-1])
        assert peers[-1].answer() is None
        assert all(isinstance(peer.ask(request[-1:]), Fetched) for peer in peers[:-1])
        assert isinstance(other.ask(request), Fetched)
