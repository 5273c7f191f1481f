"""Hints through a real daemon: they reach it, are counted, bounded and never reject a store; older daemons get none."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from eventually import PATIENCE_S, eventually
from keyed_pages import in_memory, prompt, store
from pagetier.client import NO_HINT, Client, Hint
from pagetier.client.adapters import reserve_async
from pagetier.daemon.status.hint_report import HintReport
from pagetier.shm._core import KEY_BYTES, HintKind
from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import BUILD, Attach, HintPages, PagesHinted
from running_daemon import RunningDaemon

FRAME, FRAMES = 65_536, 256
KEYS, OTHERS = prompt(0, 10), prompt(1, 300)


@pytest.fixture
def learning() -> Iterator[RunningDaemon]:
    running = RunningDaemon("16MiB", "64KiB", "--set", "evict.free=0")
    running.config.write_text("")
    with running as daemon:
        yield daemon


def counted(daemon: RunningDaemon, **wanted: int) -> bool:
    """Returns whether these counters of hints are shown soon, and all others are 0."""
    return eventually(lambda: daemon.snapshot().hints == HintReport(**wanted))


def test_kept_pages_stay_until_they_are_kept_no_longer(learning: RunningDaemon) -> None:
    with learning.client() as client:
        store(client, KEYS, FRAME)
        assert client.hint(KEYS, Hint.keep())
        for number in range(1, 4):
            store(client, prompt(number, 200), FRAME)
        assert in_memory(client, KEYS) == 10
        assert counted(learning, pages=10, applied=10, kept_bytes=10 * FRAME)
        assert client.hint(KEYS, Hint.unkeep())
        assert counted(learning, pages=20, applied=20)
    assert learning.findings() == []


def test_a_store_keeps_its_pages_up_to_the_share(learning: RunningDaemon) -> None:
    with learning.client() as client:
        result = client.store(OTHERS[:200], bytes(200 * 100), hint=Hint.keep(math.inf))
        assert result.stored == 200
        assert counted(learning, pages=200, applied=128, absent=72, kept_bytes=128 * FRAME)
        learning.reload("[evict]\nkeep_share = 0.25\n")
        assert eventually(lambda: learning.snapshot().hints.kept_bytes == 0), "the only keep is larger than that"


def test_an_arena_full_of_kept_pages_takes_a_store() -> None:
    with RunningDaemon("16MiB", "64KiB", "--set", "evict.keep_share=0.99") as daemon, daemon.client() as client:
        for number in range(16):
            client.store(prompt(100 + number, 16), bytes(16 * 100), hint=Hint.keep())
        assert store(client, OTHERS[:20], FRAME).stored == 20
        assert eventually(lambda: daemon.snapshot().hints.keeps_ended_early > 0)
        assert daemon.findings() == []


def test_hints_for_pages_that_do_not_exist_are_counted(learning: RunningDaemon) -> None:
    with learning.client() as client:
        assert client.hint(KEYS, Hint.returns_within(20))
        assert client.hint(KEYS, Hint.keep())
        assert counted(learning, pages=20, absent=20)


def test_with_lru_hints_are_accepted_and_counted() -> None:
    with RunningDaemon("16MiB", "64KiB", "--set", "evict.policy=lru") as daemon, daemon.client() as client:
        assert store(client, KEYS, FRAME).stored == 10
        for number, hint in enumerate((Hint.over(), Hint.returns_within(60), Hint.keep(), NO_HINT), 1):
            assert client.hint(KEYS, hint)
            assert counted(daemon, pages=10 * number, without_effect=10 * number), hint


def test_stores_carry_hints(learning: RunningDaemon) -> None:
    with learning.client() as client:
        for kind in (Hint.over(), Hint.returns_within(1), Hint.returns_within(1000), NO_HINT):
            assert client.store(KEYS, bytes(10 * 100), hint=kind).refused == 0
        client.reserve(OTHERS[:5], FRAME, hint=Hint.over()).publish()
        reserve_async(client, OTHERS[5:10], FRAME, hint=Hint.over()).wait(PATIENCE_S).publish()
        assert counted(learning, pages=40, applied=40)


@pytest.mark.parametrize("ttl", [0.0, -1.0, math.nan, -math.inf])
def test_a_time_to_live_that_is_not_positive_is_an_error(ttl: float) -> None:
    for make in (Hint.over, Hint.keep):
        with pytest.raises(ValueError, match=r"a (positive )?number of seconds"):
            make(ttl)
    with pytest.raises(ValueError, match=r"a (positive )?number of seconds"):
        Hint.returns_within(ttl)


def test_only_kept_pages_have_no_end() -> None:
    assert Hint.keep(math.inf).ttl == math.inf
    for make in (Hint.over, Hint.returns_within):
        with pytest.raises(ValueError, match="positive number of seconds"):
            make(math.inf)


def test_a_hint_lives_as_long_as_its_table_says() -> None:
    """The table is in docs/api.md."""
    assert (Hint.over().ttl, Hint.keep().ttl) == (3600.0, 300.0)
    assert [Hint.returns_within(seconds).ttl for seconds in (60, 150, 400)] == [300.0, 300.0, 800.0]


def test_a_time_of_return_is_one_of_four() -> None:
    kinds = [Hint.returns_within(seconds).kind for seconds in (0.1, 20, 21, 60, 300, 301, 1e9)]
    assert [kind.name for kind in kinds] == [
        "WITHIN_20", "WITHIN_20", "WITHIN_60", "WITHIN_60", "WITHIN_300", "LATER", "LATER"
    ]  # fmt: skip


def test_what_is_no_hint_is_an_error(client: Client) -> None:
    with pytest.raises(TypeError, match=r"Hint\.over"):
        client.hint(KEYS, "over")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Hint\.over"):
        client.store(KEYS, bytes(1000), hint=True)  # type: ignore[arg-type]


def test_without_a_daemon_no_hint_is_sent(learning: RunningDaemon) -> None:
    with learning.client() as client:
        learning.kill()
        assert eventually(lambda: not client.attached)
        assert not client.hint(KEYS, Hint.over())
    learning.start()
    assert eventually(lambda: not learning.slots()), "the closed client finds it and returns its slot"


def test_hints_do_not_survive_the_daemon(learning: RunningDaemon) -> None:
    with learning.client() as client:
        store(client, KEYS, FRAME)
        client.hint(KEYS, Hint.keep(math.inf))
        assert counted(learning, pages=10, applied=10, kept_bytes=10 * FRAME)
        learning.kill()
        learning.start()
        assert client.wait_attached(PATIENCE_S)
        assert in_memory(client, KEYS) == 10
        client.hint(KEYS[:1], Hint.keep(math.inf))
        assert counted(learning, pages=1, applied=1, kept_bytes=FRAME), "only what the next daemon heard"


@pytest.mark.parametrize(
    ("sent", "trouble"),
    [
        (HintPages(1, b"x", HintKind.OVER, 1.0), "not a whole number of keys"),
        (HintPages(1, bytes(KEY_BYTES), 99, 1.0), "hint 99 is not known"),
        (HintPages(1, bytes(KEY_BYTES), HintKind.OVER, -1.0), "positive number of seconds"),
        (HintPages(1, bytes(KEY_BYTES), HintKind.OVER, math.nan), "positive number of seconds"),
        (HintPages(1, b"", HintKind.KEEP, 1.0), "needs keys or a namespace"),
        (HintPages(1, b"", HintKind.OVER, 1.0, "test"), "can be named by their namespace"),
        (HintPages(1, bytes(KEY_BYTES * ((1 << 16) + 1)), HintKind.OVER, 1.0), "at most 65536"),
    ],
)
def test_a_wrong_message_is_counted_and_the_connection_stays(
    learning: RunningDaemon, sent: HintPages, trouble: str
) -> None:
    link = Link(learning.socket, 5.0)
    link.greet(Attach(BUILD, 1, "test"), 5.0)
    try:
        answer = link.ask(sent, 5.0)
        assert isinstance(answer, PagesHinted) and trouble in answer.trouble
        answer = link.ask(HintPages(2, bytes(KEY_BYTES), HintKind.OVER, 1e300), 5.0)
        assert answer == PagesHinted(2, 1, 0)
    finally:
        link.detach(5.0)
        link.close()
    assert counted(learning, wrong=1, pages=1, absent=1)
