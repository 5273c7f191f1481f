"""vLLM's scheduler loads from the fleet what another host has stored, and waits for it within its limits only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from eventually import eventually
from harnessed_hosts import Fleet, FleetEngine, two_hosts
from harnessed_models import ALONE, LONGER, MODELS
from harnessed_scheduler import BLOCK
from network_hosts import stopped
from pagetier.client import tier_speed
from pagetier.client.engines.fleet_reads import FleetLimits
from pagetier.shm import clock
from pagetier.shm._core import KEY_BYTES
from vllm_engine import LONG_S

PROMPT = list(range(40 * BLOCK + 1))
ASK_S, READ_S = 0.05, 0.4  # how long requests wait where that is tested


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with two_hosts(tmp_path_factory.mktemp("fleet") / "store") as fleet:
        yield fleet


@pytest.fixture
def fleet(hosts: Fleet) -> Iterator[Fleet]:
    """Hosts whose store is fast."""
    yield hosts
    hosts.end_delays()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Fleet]:
    """Hosts of this test alone: the daemon remembers for a while how slow the store was."""
    with two_hosts(tmp_path / "store") as fleet:
        yield fleet
        fleet.end_delays()


def own(number: int, tokens: int = 40 * BLOCK + 1) -> list[int]:
    """Returns tokens that no other prompt has."""
    return [10000 * (number + 1) + at for at in range(tokens)]


@pytest.mark.parametrize("model", (*MODELS, *ALONE, *LONGER))
def test_a_prompt_of_another_host_is_loaded(fleet: Fleet, model: str) -> None:
    engine, before = fleet.engine(model), fleet.remote_tokens
    engine.share(PROMPT)
    engine.arrive("one", PROMPT)
    engine.wait("one")
    expected = len(PROMPT) // engine.grain * engine.grain
    assert engine.loads("one") == expected
    assert engine.half.by_tier(engine.scheduler.requests["one"], expected).from_fleet == expected
    engine.end()  # compares the contents of all blocks
    assert engine.counted["remote_tokens"] == expected and fleet.remote_tokens - before == expected


def test_pages_are_read_while_a_request_waits_for_its_turn(slow: Fleet) -> None:
    engine = slow.engine()
    engine.share(PROMPT)
    slow.delay(0.02, "delay-get")
    one = engine.arrive("one", PROMPT)
    assert eventually(lambda: not engine.half.reads.decide_wait(engine.half._tracked["one"], 0, clock.now()))
    assert engine.half.matched(one, 0) == 40 * BLOCK, "at the first time it is asked"
    engine.end()


def test_an_engine_that_announces_no_arrivals_asks_at_the_first_match(fleet: Fleet) -> None:
    engine = fleet.engine()
    engine.share(PROMPT)
    with mock.patch.object(engine.half, "arrived"):
        engine.submit_prompt("one", PROMPT)
    assert engine.wait("one") > 0
    assert engine.loads("one") == 40 * BLOCK
    engine.end()


def test_requests_with_the_same_prefix_read_it_once(fleet: Fleet) -> None:
    engine = fleet.engine()
    engine.share(PROMPT)
    read = fleet.second.fresh_report().read
    names = [f"r{number}" for number in range(8)]
    for number, name in enumerate(names):
        engine.arrive(name, PROMPT[: 40 * BLOCK] + own(number, 5))
    assert len({engine.half._tracked[name].fleet for name in names}) == 1, "one question"
    engine.end()
    assert eventually(lambda: fleet.second.report.read - read >= 40) and fleet.second.report.read - read == 40
    assert engine.loaded_pages == 40


def test_a_request_that_shared_a_question_asks_for_its_other_pages(fleet: Fleet) -> None:
    engine = fleet.engine()
    engine.share(PROMPT[: 20 * BLOCK] + own(1))
    engine.share(PROMPT[: 20 * BLOCK] + own(2))
    engine.arrive("one", PROMPT[: 20 * BLOCK] + own(1))
    engine.arrive("two", PROMPT[: 20 * BLOCK] + own(2))
    engine.end()
    assert engine.counted["remote_tokens"] >= (60 + 40) * BLOCK


def test_too_few_tokens_are_not_asked_for(fleet: Fleet) -> None:
    engine = fleet.engine(least=41 * BLOCK)
    engine.share(PROMPT)
    engine.arrive("one", PROMPT)
    assert engine.wait("one") == 0 and not engine.loads("one")
    assert engine.half._tracked["one"].fleet is None
    engine.end()


def test_pages_on_this_host_count_as_such(fleet: Fleet) -> None:
    engine = fleet.engine()
    engine.share(PROMPT)
    engine.store_prompt_elsewhere(PROMPT[: 10 * BLOCK])
    engine.arrive("one", PROMPT)
    engine.wait("one")
    engine.end()
    counted = engine.counted
    assert (counted["memory_tokens"], counted["remote_tokens"]) == (10 * BLOCK, 30 * BLOCK)


def test_a_store_that_hangs_in_questions_delays_few_requests(tmp_path: Path) -> None:
    with two_hosts(tmp_path / "store", ASK_S) as fleet:
        engine = fleet.engine(ask=ASK_S)
        fleet.delay(math.inf)
        asked: list[bool] = []
        for name in (f"r{number}" for number in range(8)):
            engine.arrive(name, own(len(asked)))
            asked.append(engine.half._tracked[name].fleet is not None)
            engine.wait(name)
            assert len(asked) != 3 or eventually(lambda: not fleet.second.asks), "the breaker has not opened"
        assert asked == [True] * 3 + [False] * 5
        assert not fleet.second.asks
        engine.end()
        fleet.end_delays()


def test_a_store_that_hangs_in_reads_delays_a_request_within_its_timeout(slow: Fleet) -> None:
    engine = slow.engine(timeout=READ_S)
    engine.share(PROMPT)
    slow.delay(math.inf, "delay-get")
    engine.arrive("one", PROMPT)
    assert eventually(lambda: (read := engine.half._tracked["one"].fleet) is not None and read.hit is not None)
    engine.wait("one")
    assert not engine.loads("one")
    engine.end()


def test_with_a_timeout_of_zero_no_request_waits_and_the_next_one_finds_the_pages(fleet: Fleet) -> None:
    engine = fleet.engine(timeout=0.0)
    engine.share(PROMPT)
    one = engine.arrive("one", PROMPT)
    assert engine.half.matched(one, 0) is not None
    keys = engine.half._groups[0].keys(one.block_hashes)

    def there() -> bool:
        with fleet.second.client.match(keys) as match:
            return len(match) == 40

    assert eventually(there), "before any of them is computed"
    engine.end()


def test_a_daemon_that_hangs_delays_the_first_request_for_the_time_of_an_answer(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fleet.engine(ask=ASK_S)
    process = fleet.second.daemon.process
    assert process is not None
    with stopped(process.pid), monkeypatch.context() as patch:
        patch.setattr(fleet.worker, "timeout", ASK_S)  # its stores wait for the daemon, too
        engine.arrive("first", own(0))
        read = engine.half._tracked["first"].fleet
        engine.wait("first")
        assert read is not None and eventually(lambda: read.is_late(clock.now()))
        for number in range(1, 8):
            engine.arrive(f"r{number}", own(number))
            assert engine.half._tracked[f"r{number}"].fleet is None, "the daemon is known to hang"
            assert engine.wait(f"r{number}") == 0
    engine.end()
    engine = fleet.engine()
    assert eventually(lambda: engine.half._client.attached and fleet.second.asks)
    engine.share(PROMPT)
    engine.arrive("well", PROMPT)
    engine.wait("well")
    assert engine.loads("well") == 40 * BLOCK
    engine.end()


def after_a_slow_read(slow: Fleet) -> FleetEngine:
    """Returns an engine that has read one of the two prompts in a slow store."""
    engine = slow.engine()
    engine.share(PROMPT)
    engine.share(own(1))
    slow.delay(0.02, "delay-get")
    engine.arrive("one", PROMPT)
    engine.wait("one")
    return engine


def test_a_slow_store_is_read_only_as_far_as_it_can_be_in_time(slow: Fleet) -> None:
    engine = after_a_slow_read(slow)
    assert eventually(lambda: slow.second.report.read == 40), "the rate is that of the whole read"
    in_ten_pages = 10 * KEY_BYTES / slow.second.report.rate
    engine.half.reads.fleet.limits = FleetLimits(in_ten_pages, BLOCK, LONG_S)
    engine.arrive("two", own(1))
    read = engine.half._tracked["two"].fleet
    assert eventually(lambda: read is not None and read.hit is not None)
    assert read is not None and read.hit is not None and 8 * BLOCK <= read.hit.tokens <= 12 * BLOCK
    engine.wait("two")
    assert engine.loads("two") <= read.hit.tokens
    engine.end()


def test_a_store_that_was_too_slow_is_measured_again_while_no_request_waits(
    slow: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = after_a_slow_read(slow)
    assert eventually(lambda: slow.second.report.read == 40)
    slow.delay(3.0, "delay-get")  # so that no page comes while the requests are asked about
    for name, probe_s in (("never", 1000.0), ("again", 0.0)):
        monkeypatch.setattr(tier_speed, "_PROBE_S", probe_s)
        monkeypatch.setattr(tier_speed, "_PROBE_LATEST_S", probe_s)
        engine.half.reads.fleet.limits = FleetLimits(2 * KEY_BYTES / slow.second.report.rate, 20 * BLOCK, LONG_S)
        one = engine.arrive(name, own(1))
        read = engine.half._tracked[name].fleet
        assert read is not None and eventually(lambda: read.ended or read.hit is not None)  # noqa: B023
        assert (read.hit is not None) == (name == "again")
        assert engine.half.matched(one, 0) == 0, "it cannot come in time"
    slow.end_delays()
    engine.end()


def test_a_request_does_not_wait_for_pages_that_the_gpu_has(slow: Fleet) -> None:
    engine = slow.engine(least=4 * BLOCK)
    engine.share(PROMPT)
    slow.delay(0.3, "delay-get")
    one = engine.arrive("one", PROMPT)
    assert eventually(lambda: (read := engine.half._tracked["one"].fleet) is not None and read.hit is not None)
    assert engine.half.matched(one, 36 * BLOCK) is None
    assert engine.half.matched(one, 37 * BLOCK) is not None
    engine.wait("one")
    engine.end()
