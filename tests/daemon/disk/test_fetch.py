"""Tests that pages that left memory are found on disk and come back unchanged."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest

from bare_engine import Engine
from disk_daemon import DiskDaemon, evicted
from eventually import PATIENCE_S, eventually
from numbered_pages import keys_of
from pagetier.shm._core import KEY_BYTES, Pins, located_pages
from pagetier.shm.protocol import Fetch, Fetched, FetchLocated, FetchOutcome, Space
from running_daemon import RunningDaemon

FRAMES = 32
FOREVER_S = 3600.0


@pytest.fixture(scope="module")
def daemon() -> Iterator[DiskDaemon]:
    with DiskDaemon(FRAMES) as running:
        yield running


def test_evicted_pages_come_back_exactly_and_in_order(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = evicted(daemon, engine, 0, 12)
    before = daemon.snapshot()
    assert engine.available_pages(numbers) == (0, 12)
    assert engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * 12
    assert engine.available_pages(numbers) == (12, 12)
    assert engine.places(numbers) == {"memory": 12}
    after = daemon.snapshot()
    assert after.disk_work.read - before.disk_work.read == 12
    assert after.tiers.disk.hits - before.tiers.disk.hits == 12


def test_a_prefix_in_memory_and_the_rest_on_disk(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = evicted(daemon, engine, 100, 10)
    assert engine.fetch(numbers[:4]) == [FetchOutcome.IN_MEMORY] * 4
    assert engine.available_pages(numbers) == (4, 10)
    assert engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * 10
    assert engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * 10  # at once, because it is in memory


def test_two_fetches_of_the_same_pages_share_the_reading(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = evicted(daemon, engine, 200, 10)
    before = daemon.snapshot().disk_work.read
    with Engine(daemon) as other:
        for asking in (engine, other):
            asking.ask_fetch(numbers)
        assert [list(asking.answer().outcomes) for asking in (engine, other)] == [[FetchOutcome.IN_MEMORY] * 10] * 2
        assert other.places(numbers) == {"memory": 10}
    assert daemon.snapshot().disk_work.read - before == 10


def test_a_timeout_of_zero_is_answered_at_once_and_the_pages_are_still_read(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = evicted(daemon, engine, 300, 8)
    assert set(engine.fetch(numbers, 0)) <= {FetchOutcome.IN_MEMORY, FetchOutcome.PENDING}
    assert eventually(lambda: engine.available_pages(numbers) == (8, 8))
    numbers = evicted(daemon, engine, 320, 8)
    for odd in (-1.0, float("nan")):
        assert set(engine.fetch(numbers, odd)) <= {FetchOutcome.IN_MEMORY, FetchOutcome.PENDING}
    assert set(engine.fetch(numbers, float("inf"))) == {FetchOutcome.IN_MEMORY}


def test_a_timeout_that_is_too_short(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = evicted(daemon, engine, 400, 8)
    engine.ask_fetch(numbers, 1e-9)
    answer = engine.answer()
    assert set(answer.outcomes) <= {FetchOutcome.IN_MEMORY, FetchOutcome.PENDING}
    assert bool(answer.reason) is (FetchOutcome.PENDING in answer.outcomes)
    assert eventually(lambda: engine.available_pages(numbers) == (8, 8))


def test_unknown_keys_are_absent_and_so_is_what_follows_them(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = evicted(daemon, engine, 500, 6)
    assert engine.fetch([90_000, 90_001]) == [FetchOutcome.ABSENT] * 2
    assert (
        engine.fetch([*numbers[:3], 90_000, *numbers[3:]]) == [FetchOutcome.IN_MEMORY] * 3 + [FetchOutcome.ABSENT] * 4
    )
    assert engine.available_pages(numbers) == (3, 6)
    assert engine.fetch([]) == []


def test_more_than_the_arena_holds_comes_as_a_prefix(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = evicted(daemon, engine, 600, 2 * FRAMES)
    outcomes = engine.fetch(numbers)
    came = outcomes.index(FetchOutcome.NO_ROOM)
    assert outcomes == [FetchOutcome.IN_MEMORY] * came + [FetchOutcome.NO_ROOM] * (len(numbers) - came)
    assert 0 < came <= FRAMES
    assert engine.available_pages(numbers) == (came, len(numbers))
    assert engine.places(numbers[:came]) == {"memory": came}


def test_pages_in_use_leave_no_room_for_others(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = evicted(daemon, engine, 700, 4)
    held = range(5700, 5700 + FRAMES)
    engine.store(held)
    with engine.session.match(Pins, None, keys_of(held)) as pins:
        outcomes = engine.fetch(numbers)
        assert len(pins) == FRAMES
        assert outcomes == [FetchOutcome.NO_ROOM] * 4
    assert engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * 4


@pytest.mark.parametrize("length", [1, 32, 43, 45, 87])
def test_located_pages_of_a_wrong_length_are_rejected_with_a_reason(engine: Engine, length: int) -> None:
    answer = engine.link.ask(FetchLocated(1, bytes(length), 1.0, ()), 10)
    assert isinstance(answer, Fetched) and answer.outcomes == b""
    assert "not a whole number of pages" in answer.reason


@pytest.mark.parametrize("digests", [[], [bytes(KEY_BYTES)], [bytes(KEY_BYTES), b"short"]])
def test_located_pages_are_read_from_disk_without_a_fleet(
    daemon: DiskDaemon, engine: Engine, digests: list[bytes]
) -> None:
    numbers = evicted(daemon, engine, 400 + 10 * len(digests), 3)
    pages = located_pages(keys_of(numbers), array("Q", [1] * 3), array("I", [0, 7, 2**32 - 1]))
    table = tuple(Space(digest, "any", 16) for digest in digests)
    answer = engine.link.ask(FetchLocated(1, pages, PATIENCE_S, table), PATIENCE_S)
    assert isinstance(answer, Fetched) and list(answer.outcomes) == [FetchOutcome.IN_MEMORY] * 3


@pytest.mark.parametrize("length", [1, 31, 33, 63])
def test_keys_of_a_wrong_length_are_rejected_with_a_reason(engine: Engine, length: int) -> None:
    answer = engine.link.ask(Fetch(1, bytes(length), 1.0), 10)
    assert isinstance(answer, Fetched)
    assert answer.outcomes == b""
    assert "not a whole number of keys" in answer.reason


def test_the_same_key_many_times(daemon: DiskDaemon, engine: Engine) -> None:
    (number,) = evicted(daemon, engine, 800, 1)
    assert engine.fetch([number] * 50) == [FetchOutcome.IN_MEMORY] * 50


def test_without_a_disk_pages_that_are_not_in_memory_are_absent() -> None:
    with RunningDaemon("1MiB") as daemon, Engine(daemon) as engine:
        engine.store(range(4))
        engine.ask_fetch(range(6), FOREVER_S)
        answer = engine.answer()
        assert list(answer.outcomes) == [FetchOutcome.IN_MEMORY] * 4 + [FetchOutcome.ABSENT] * 2
        assert "the disk tier is not open" in answer.reason
        assert engine.fetch(range(4), 0) == [FetchOutcome.IN_MEMORY] * 4
