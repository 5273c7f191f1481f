"""How many connections there may be, whose turn it is, and how much of the log one user may fill."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagetier.daemon.gate import MOST_OF_PROCESS, MOST_SILENT, Gate
from pagetier.daemon.peers import Caller
from pagetier.daemon.ration import LINES, MINUTE_S, Ration
from pagetier.shm.logfmt import event
from pagetier.shm.protocol import BUILD, Attach, Check, Detach, Findings, Observe, Reserve, Reserved, Space, Welcome
from serving import Peer, serving

log = logging.getLogger(__name__)


def caller(pid: int = 1, uid: int = 7) -> Caller:
    return Caller(pid, uid, frozenset())


def test_the_silent_of_one_user_wait_for_each_other_alone() -> None:
    gate = Gate(10 * MOST_SILENT)
    assert [gate.enter(caller(pid)) for pid in range(MOST_SILENT)] == [""] * MOST_SILENT
    assert "have not said yet" in gate.enter(caller(1000))
    assert gate.enter(caller(1000, uid=8)) == ""
    gate.greeted(caller(3))
    assert gate.enter(caller(1000)) == ""
    assert "have not said yet" in gate.enter(caller(1001))


def test_one_process_and_all_together_have_their_bounds() -> None:
    gate = Gate(MOST_OF_PROCESS + 2)
    for _ in range(MOST_OF_PROCESS):
        assert gate.enter(caller()) == ""
        gate.greeted(caller())
    assert gate.enter(caller()) == f"this process has {MOST_OF_PROCESS} connections"
    assert (gate.enter(caller(2)), gate.enter(caller(3))) == ("", "")
    assert gate.enter(caller(4)) == f"there are {MOST_OF_PROCESS + 2} connections"
    gate.leave(caller())
    assert gate.enter(caller()) == ""


def test_a_user_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    ration = Ration(log, lambda: now[0])
    for _ in range(2):
        for number in range(LINES + 5):
            ration.tell(logging.WARNING, 7, "line %d", number, extra=event("test"))
        ration.tell(logging.WARNING, 8, "another's", extra=event("test"))
        now[0] += MINUTE_S
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 * (LINES + 1) + 1
    assert told[LINES + 1] == "of user 7 there were 5 more such lines in a minute"


# --- a real socket ---------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with serving(tmp_path) as socket:
        yield socket


def test_who_asks_much_is_answered_all_of_it_in_order(path: Path) -> None:
    """More than a turn's worth in one piece."""
    with Peer(path) as peer, Peer(path) as other:
        assert isinstance(peer.ask(Attach(BUILD, 1, "much")), Welcome)
        assert isinstance(other.ask(Observe(BUILD)), Welcome)
        space, sizes = Space(b"d" * 32, "space", 16), struct.pack("<Q", 4096) * 60
        peer.send(*[Reserve(number, space, 0, 1, bytes(32 * 60), sizes) for number in range(80)])
        assert other.ask(Check(1)) == Findings(1, [])
        answers = [peer.answer() for _ in range(80)]
        assert [answer.number for answer in answers if isinstance(answer, Reserved)] == list(range(80))
        peer.send(Detach())


def test_who_reads_no_answers_is_asked_for_no_more(path: Path) -> None:
    """And goes on where it stopped, as soon as it reads them."""
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


def test_who_only_looks_has_little_to_say(path: Path) -> None:
    with Peer(path) as peer:
        assert isinstance(peer.ask(Observe(BUILD)), Welcome)
        assert peer.ask(struct.pack("<I", 1 << 20)) is None
