"""Tests the limits of connections, the turns that each connection gets, and the limit of log lines of one user."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from in_process_server import Peer, serving
from pagetier.daemon.common.log_throttle import LINES, MINUTE_S, SAME, UNKNOWN_USER, LogThrottle
from pagetier.daemon.host.peer_credentials import Caller, Rights
from pagetier.daemon.server.limits import MOST_OF_PROCESS, MOST_SILENT, MOST_UNFINISHED, MOST_WATCHING, ConnectionLimits
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.log_format import event
from pagetier.shm.protocol import (
    BUILD,
    REQUEST_LIMIT,
    Attach,
    Check,
    Detach,
    Fetch,
    Fetched,
    Findings,
    Observe,
    Reserve,
    Reserved,
    Space,
    Welcome,
    pack,
)

log = logging.getLogger(__name__)


def caller(pid: int = 1, uid: int = 7) -> Caller:
    return Caller(pid, uid, frozenset())


def enter(gate: ConnectionLimits, peer: Caller) -> tuple[str, list[str]]:
    """Returns why the connection is refused, and the list of reasons for which it is closed later."""
    messages = list[str]()
    return gate.enter(peer, Rights.ATTACH, messages.append), messages


def test_the_oldest_silent_connection_of_a_user_is_closed() -> None:
    gate, messages = ConnectionLimits(10 * MOST_SILENT), [list[str]() for _ in range(MOST_SILENT + 1)]
    ends = [many.append for many in messages]
    for number in range(MOST_SILENT):
        assert gate.enter(caller(number), Rights.ATTACH, ends[number]) == ""
    gate.greeted(caller(0), ends[0])
    assert gate.enter(caller(1000), Rights.ATTACH, ends[-1]) == ""
    assert not any(messages), "there was room for one"
    assert enter(gate, caller(1001, uid=8)) == ("", [])
    assert enter(gate, caller(1002)) == ("", [])
    assert [number for number, said in enumerate(messages) if said] == [1]


def test_connections_are_limited_for_a_process_and_in_total() -> None:
    gate = ConnectionLimits(MOST_OF_PROCESS + 2)
    for _ in range(MOST_OF_PROCESS):
        assert gate.enter(caller(), Rights.ATTACH, print) == ""
        gate.greeted(caller(), print)
    assert (
        gate.enter(caller(), Rights.ATTACH, print)
        == f"this process has {MOST_OF_PROCESS} connections, the most for one process"
    )
    assert (gate.enter(caller(2), Rights.ATTACH, print), gate.enter(caller(3), Rights.ATTACH, print)) == ("", "")
    assert (
        gate.enter(caller(4), Rights.ATTACH, print)
        == f"there are {MOST_OF_PROCESS + 2} connections, the most for this daemon"
    )
    gate.leave(caller(), print)
    assert gate.enter(caller(), Rights.ATTACH, print) == ""


def test_users_who_may_not_attach_have_their_own_limits() -> None:
    gate, ends = ConnectionLimits(4 * MOST_WATCHING), [list[str]().append for _ in range(2 * MOST_WATCHING + 1)]
    for at, end in enumerate(ends[:-1]):
        peer = caller(pid=at, uid=at // MOST_WATCHING)
        assert gate.enter(peer, Rights.WATCH, end) == ""
        gate.greeted(peer, end)
        if at == MOST_WATCHING - 1:
            refusal = gate.enter(caller(pid=1000, uid=0), Rights.WATCH, ends[-1])
            assert refusal == f"user 0 may not attach and has {MOST_WATCHING} connections"
    refusal = gate.enter(caller(pid=1000, uid=2), Rights.NOTHING, ends[-1])
    assert refusal == f"users who may not attach have {2 * MOST_WATCHING} connections"
    assert gate.enter(caller(pid=1000, uid=0), Rights.ATTACH, print) == "", (
        "the limit is only for users who may not attach"
    )
    gate.leave(caller(pid=0, uid=0), ends[0])
    assert gate.enter(caller(pid=1000, uid=2), Rights.NOTHING, ends[-1]) == ""


def test_a_user_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    ration = LogThrottle(log, lambda: now[0])
    for _ in range(2):
        for number in range(LINES + 5):
            ration.log(logging.WARNING, 7, "line %d", number, extra=event("test"))
        ration.log(logging.WARNING, 8, "another's", extra=event("test"))
        now[0] += MINUTE_S
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2 * (LINES + 1) + 1
    assert messages[LINES + 1] == "5 more such lines caused by user 7 in one minute were left out"


def test_lines_of_an_unknown_user_are_limited_too(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    ration = LogThrottle(log, lambda: now[0])
    for _ in range(SAME + 4):
        ration.log(logging.WARNING, UNKNOWN_USER, "full", extra=event("test"))
    now[0] += MINUTE_S
    ration.log(logging.WARNING, UNKNOWN_USER, "full", extra=event("test"))
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["full"] * SAME + ["4 more such lines in one minute were left out", "full"]


def test_equal_lines_are_logged_a_few_times_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    ration = LogThrottle(log, lambda: now[0])
    for _ in range(45):
        ration.log(logging.WARNING, 7, "%s may not attach", "pid 12", extra=event("test"))
        now[0] += MINUTE_S / 46
    ration.log(logging.WARNING, 7, "%s may not attach", "pid 13", extra=event("test"))
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["pid 12 may not attach"] * SAME + ["pid 13 may not attach"]


# --- a real socket ---------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with serving(tmp_path) as socket:
        yield socket


def test_many_requests_are_all_answered_in_order(path: Path) -> None:
    """The requests take more than one turn and arrive in one piece."""
    with Peer(path) as peer, Peer(path) as other:
        assert isinstance(peer.ask(Attach(BUILD, 1, "much")), Welcome)
        assert isinstance(other.ask(Observe(BUILD)), Welcome)
        space, sizes = Space(b"d" * KEY_BYTES, "space", 16), struct.pack("<Q", 4096) * 60
        peer.send(*[Reserve(number, space, 0, 1, bytes(KEY_BYTES * 60), sizes) for number in range(80)])
        assert other.ask(Check(1)) == Findings(1, [])
        answers = [peer.answer() for _ in range(80)]
        assert [answer.number for answer in answers if isinstance(answer, Reserved)] == list(range(80))
        peer.send(Detach())


def test_no_requests_are_read_from_a_peer_that_reads_no_responses(path: Path) -> None:
    """It continues where it stopped as soon as the peer reads."""
    with Peer(path) as deaf:
        assert isinstance(deaf.ask(Observe(BUILD)), Welcome)
        deaf.socket.settimeout(0.3)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 10_000_000:
                deaf.send(Check(sent))
                sent += 1
        deaf.socket.settimeout(10)
        assert [deaf.answer() for _ in range(sent)] == [Findings(number, []) for number in range(sent)]


def test_messages_of_an_observer_are_limited(path: Path) -> None:
    with Peer(path) as peer:
        assert isinstance(peer.ask(Observe(BUILD)), Welcome)
        assert peer.ask(struct.pack("<I", 1 << 20)) is None


def test_incomplete_messages_are_limited_over_all_connections_of_a_process(path: Path) -> None:
    """A process that sends too much is disconnected; its other connections continue."""
    request = pack(Fetch(1, bytes(KEY_BYTES * (REQUEST_LIMIT // 33)), 0.0))
    with ExitStack() as stack:
        other, *peers = [stack.enter_context(Peer(path)) for _ in range(2 + MOST_UNFINISHED // len(request))]
        assert all(isinstance(peer.ask(Attach(BUILD, 1, "much")), Welcome) for peer in (other, *peers))
        for peer in peers[:-1]:
            peer.send(request[:-1])
        assert other.ask(Check(1)) == Findings(1, []), "the daemon has read the bytes of the others"
        with suppress(OSError):
            peers[-1].send(request[:-1])
        assert peers[-1].answer() is None
        assert all(isinstance(peer.ask(request[-1:]), Fetched) for peer in peers[:-1])
        assert isinstance(other.ask(request), Fetched)
