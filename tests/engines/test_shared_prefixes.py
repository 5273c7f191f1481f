"""Tests that requests that arrive together wait for a prefix that one of them loads, and never without reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple
from unittest import mock

import pytest

from disk_daemon import write_through
from eventually import eventually
from harnessed_models import ALONE, LONGER, MODELS, WIDE, aborted, assert_nothing_is_left, engine_of, groups_of, keys_of
from harnessed_scheduler import BLOCK, BY_REQUEST, HarnessedEngine, Loads
from pagetier.client import Client
from pagetier.client.groups import Recurrent
from running_daemon import RunningDaemon

REQUESTS = 50
PREFIX = list(range(16 * BLOCK))
EVERY_MODEL = (*MODELS, *ALONE, *LONGER)
LARGE = {"max_num_batched_tokens": 8192, "max_num_seqs": 64}


class Turn(Enum):
    """When vLLM asks for a request whose load has ended: before the other waiting requests, or, up to 0.30, after."""

    LOADED_FIRST = 1
    LOADED_LAST = 2


class Host(NamedTuple):
    daemon: RunningDaemon
    client: Client
    engines: list[HarnessedEngine]

    def engine(self, model: str = "full", blocks: int = 4000, **settings: Any) -> HarnessedEngine:
        settings = {"disk_timeout": 0.0} | settings
        self.engines.append(engine_of(model, self.daemon, self.client, blocks, engine=LARGE, **settings))
        return self.engines[-1]

    def pins(self) -> int:
        return sum(slot.pins for slot in self.daemon.slots() if slot.name != "disk tier")

    def end(self, engine: HarnessedEngine) -> None:
        """Runs until all requests have ended."""
        until(engine, lambda: not engine.scheduler.requests)
        engine.run()
        assert_nothing_is_left(engine, self.daemon)


@pytest.fixture
def host(daemon: RunningDaemon, client: Client) -> Iterator[Host]:
    host = Host(daemon, client, [])
    yield host
    for engine in host.engines:
        engine.half.close()


def own(number: int, tokens: int = BLOCK + 1) -> list[int]:
    """Returns tokens that no other prompt has."""
    return [10000 * (number + 1) + at for at in range(tokens)]


def submit_many(engine: HarnessedEngine, count: int = REQUESTS, begin: list[int] = PREFIX) -> list[str]:
    """Submits requests that begin with the same tokens. Returns their names."""
    names = [f"r{number}" for number in range(count)]
    for number, name in enumerate(names):
        engine.submit_prompt(name, begin + own(number))
    return names


def step(engine: HarnessedEngine, loads: Loads = Loads.SUCCEED, turn: Turn = Turn.LOADED_FIRST) -> list[str]:
    """Runs a step. Returns the requests whose load begins in it."""
    holding = getattr(engine.scheduler, "kv_holding_waiting", None)
    while turn is Turn.LOADED_LAST and holding:
        engine.scheduler.waiting.add_request(holding.pop_request())
    engine.end_stores()
    engine.step(loads)
    return engine.begun


def until(
    engine: HarnessedEngine,
    reached: Callable[[], bool],
    loads: Loads = Loads.SUCCEED,
    turn: Turn = Turn.LOADED_FIRST,
) -> list[str]:
    """Runs steps until a state is reached. Returns the requests whose load began."""
    begun: list[str] = []
    for _ in range(1000):
        if reached():
            return begun
        begun += step(engine, loads, turn)
    raise AssertionError(f"requests do not go on: {engine.scheduler.requests}")


def abort(engine: HarnessedEngine, name: str) -> None:
    engine.scheduler.finish_requests(name, aborted())


def running(engine: HarnessedEngine) -> list[str]:
    return [request.request_id for request in engine.scheduler.running]


def pages_of(engine: HarnessedEngine, tokens: int) -> int:
    """Returns the number of pages that a hit needs."""
    return sum(len(group.kind.pages(tokens)) for group in engine.groups)


@pytest.mark.parametrize("turn", Turn)
@pytest.mark.parametrize("model", EVERY_MODEL)
def test_a_shared_prefix_is_loaded_once(host: Host, model: str, turn: Turn) -> None:
    engine = host.engine(model)
    engine.store_prompt_elsewhere(PREFIX)
    names = submit_many(engine)
    assert step(engine) == names[:1]
    assert engine.delayed == names[1:] and engine.scheduler.requests["r0"].num_computed_tokens == len(PREFIX)
    once = engine.loaded_pages
    assert not step(engine, turn=turn)
    if len(running(engine)) < REQUESTS:  # vLLM finds a state a step later, or asked before its own cache had the pages
        assert not step(engine)
    assert sorted(running(engine)) == sorted(names)
    host.end(engine)
    assert engine.loaded_pages == once


def test_a_request_that_waits_pins_nothing_and_looks_up_nothing(host: Host) -> None:
    engine = host.engine()
    engine.store_prompt_elsewhere(PREFIX)
    names = submit_many(engine)
    step(engine, Loads.GO_ON)
    assert host.pins() == pages_of(engine, len(PREFIX))
    with mock.patch.object(Client, "find_groups", autospec=True, side_effect=Client.find_groups) as match:
        for _ in range(20):
            step(engine, Loads.GO_ON)
            assert engine.delayed == names[1:]
    assert not match.call_count
    host.end(engine)


def test_a_request_whose_pages_were_pinned_before_releases_them(host: Host) -> None:
    """It was matched before, but there were too few blocks for it."""
    engine = host.engine(blocks=24)
    engine.store_prompt_elsewhere(PREFIX)
    first = engine.submit_prompt("running", own(1, 8 * BLOCK))
    step(engine)
    engine.submit_prompt("loads", PREFIX + own(2))
    assert not step(engine) and host.pins()
    abort(engine, first.request_id)
    engine.submit_prompt("waits", PREFIX + own(3))
    assert step(engine, Loads.GO_ON) == ["loads"] and engine.delayed == ["waits"]
    assert host.pins() == pages_of(engine, len(PREFIX))
    host.end(engine)


def test_without_a_prefix_cache_of_vllms_own_no_request_waits(host: Host) -> None:
    engine = host.engine(cache="off", prefix_caching="always")
    engine.store_prompt_elsewhere(PREFIX)
    names = submit_many(engine, 3)
    assert step(engine, Loads.GO_ON) == names
    host.end(engine)


def test_prompts_that_share_nothing_do_not_wait(host: Host) -> None:
    engine = host.engine()
    for number in range(REQUESTS):
        prompt = own(number, 8 * BLOCK + 1)
        engine.store_prompt_elsewhere(prompt)
        engine.submit_prompt(f"r{number}", prompt)
    assert len(step(engine, Loads.GO_ON)) == REQUESTS
    host.end(engine)


@pytest.mark.parametrize("pages", [2, 4, 16])
def test_prompts_that_share_one_page_do_not_wait(host: Host, pages: int) -> None:
    assert_both_load(host, "full", *(PREFIX[:BLOCK] + own(number, (pages - 1) * BLOCK + 1) for number in range(2)))


def assert_both_load(host: Host, model: str, *prompts: list[int], stored: list[int] | None = None) -> None:
    """Asserts that two prompts, whose pages or those of another prompt are stored, load in the same step."""
    engine = host.engine(model)
    for number, prompt in enumerate(prompts):
        engine.store_prompt_elsewhere(stored or prompt)
        engine.submit_prompt(f"r{number}", prompt)
    assert step(engine, Loads.GO_ON) == ["r0", "r1"]
    host.end(engine)


def test_of_two_loads_the_one_with_more_pages_of_a_prompt_is_waited_for(host: Host) -> None:
    """The later one has the first page, too, and is found under it."""
    engine = host.engine()
    prompts = [PREFIX[:BLOCK] + own(number, 15 * BLOCK + 1) for number in range(2)]
    for number, prompt in enumerate((*prompts, [*prompts[0], 7])):
        engine.store_prompt_elsewhere(prompt)
        engine.submit_prompt(f"r{number}", prompt)
    assert step(engine, Loads.GO_ON) == ["r0", "r1"]
    host.end(engine)
    assert engine.loaded_pages == 2 * 16


def test_a_load_is_still_found_after_the_abort_of_one_that_began_alike(host: Host) -> None:
    engine = host.engine()
    prompts = [PREFIX[:BLOCK] + own(number, BLOCK + 1) for number in range(2)]
    for number, prompt in enumerate(prompts):
        engine.store_prompt_elsewhere(prompt)
        engine.submit_prompt(f"r{number}", prompt)
    assert step(engine, Loads.GO_ON) == ["r0", "r1"]
    abort(engine, "r0")
    engine.submit_prompt("r2", [*prompts[1], 7])
    assert step(engine, Loads.GO_ON) == []
    host.end(engine)


def test_a_page_that_is_all_that_is_loaded_is_waited_for(host: Host) -> None:
    engine = host.engine()
    engine.store_prompt_elsewhere(PREFIX[:BLOCK])
    submit_many(engine, 3, PREFIX[:BLOCK])
    assert step(engine) == ["r0"]
    host.end(engine)
    assert engine.loaded_pages == 1


def test_a_short_load_behind_vllms_own_hit_is_waited_for(host: Host) -> None:
    engine = host.engine()
    engine.submit_prompt("own", [*PREFIX[:BLOCK], 7])
    until(engine, lambda: not engine.scheduler.requests)
    engine.store_prompt_elsewhere(PREFIX[: 5 * BLOCK])
    submit_many(engine, 3, PREFIX[: 5 * BLOCK])
    assert step(engine) == ["r0"]
    host.end(engine)
    assert engine.loaded_pages == 4


def test_a_short_prompt_does_not_wait_for_a_much_longer_load(host: Host) -> None:
    assert_both_load(host, "full", PREFIX + own(1, 8 * len(PREFIX)), [*PREFIX, 7])


def test_a_long_prompt_does_not_wait_for_a_small_part_of_it(host: Host) -> None:
    assert_both_load(host, "full", [*PREFIX, 7], PREFIX + own(1, 8 * len(PREFIX)), stored=PREFIX)


@pytest.mark.parametrize("turn", Turn)
def test_of_partly_shared_prefixes_each_page_is_loaded_once(host: Host, turn: Turn) -> None:
    engine = host.engine()
    prompts = [PREFIX + own(number, 8 * BLOCK + 1) for number in range(10)]
    for number, prompt in enumerate(prompts):
        engine.store_prompt_elsewhere(prompt)
        engine.submit_prompt(f"r{number}", prompt)
    assert step(engine) == ["r0"]
    until(engine, lambda: not engine.scheduler.waiting, turn=turn)
    host.end(engine)
    assert engine.loaded_pages == len(PREFIX) // BLOCK + 10 * 8


def test_prefixes_that_branch_twice_are_loaded_once(host: Host) -> None:
    """The second wait is for more tokens than the first one."""
    engine = host.engine()
    for number in range(20):
        prompt = PREFIX + own(number // 5, 8 * BLOCK) + own(100 + number, 4 * BLOCK + 1)
        engine.store_prompt_elsewhere(prompt)
        engine.submit_prompt(f"r{number}", prompt)
    host.end(engine)
    assert engine.loaded_pages == len(PREFIX) // BLOCK + 4 * 8 + 20 * 4


@pytest.mark.parametrize("model", ["window", "recurrent", *ALONE] if ALONE else [])
def test_a_hybrid_model_does_not_wait_without_windows_and_states(host: Host, model: str) -> None:
    """The pages of full attention are on their way, but not the state where the prompts branch."""
    assert_both_load(host, model, *(PREFIX + own(number, 8 * BLOCK + 1) for number in range(2)))


@pytest.mark.parametrize("model", MODELS)
def test_another_request_loads_after_an_abort(host: Host, model: str) -> None:
    engine = host.engine(model)
    engine.store_prompt_elsewhere(PREFIX)
    submit_many(engine, 5)
    assert step(engine, Loads.GO_ON) == ["r0"]
    once = engine.loaded_pages
    abort(engine, "r0")
    assert step(engine, Loads.GO_ON) == ["r1"]
    abort(engine, "r2")
    host.end(engine)
    assert engine.loaded_pages == 2 * once


def test_a_request_that_finds_less_than_it_waited_for_waits_once_more(host: Host) -> None:
    engine = host.engine()
    engine.store_prompt_elsewhere(PREFIX)
    submit_many(engine, 6)
    for name in ("r0", "r1"):
        assert step(engine, Loads.GO_ON) == [name]
        abort(engine, name)
    assert step(engine, Loads.GO_ON) == ["r2", "r3", "r4", "r5"]
    host.end(engine)


def test_a_request_that_twice_finds_less_than_it_waited_for_loads(host: Host) -> None:
    """The load of its second wait brings all that this wait was for, which is less than the first one was for."""
    engine = host.engine()
    engine.store_prompt_elsewhere(PREFIX)
    engine.submit_prompt("whole", PREFIX + own(0))
    engine.submit_prompt("half", PREFIX[: 8 * BLOCK] + own(1, 70 * BLOCK))
    engine.submit_prompt("waits", PREFIX + own(2))
    assert step(engine, Loads.GO_ON) == ["whole", "half"] and engine.delayed == ["waits"]
    abort(engine, "whole")
    engine.submit_prompt("again whole", PREFIX + own(3, 140 * BLOCK))
    assert step(engine, Loads.GO_ON) == ["again whole"] and engine.delayed == ["waits"]
    engine.end_loads(most=2)  # those of "whole", which vLLM has aborted, and of "half"
    assert [name for _ in range(4) for name in step(engine, Loads.GO_ON)] == ["waits"]
    host.end(engine)


@pytest.mark.skipif(not BY_REQUEST, reason="this version of vLLM has no models of several groups")
def test_a_hit_that_is_waited_for_has_whole_pages_of_every_group(host: Host) -> None:
    """The prompts share one page of the longer pages and a half: no hit ends in the middle of such a page."""
    assert_both_load(host, WIDE, *(PREFIX[: 3 * BLOCK] + own(number, 3 * BLOCK + 1) for number in range(2)))


def test_a_request_does_not_wait_for_a_load_of_its_own(host: Host) -> None:
    """vLLM asks for a request again when it has freed its blocks; nothing is on its way into them any more."""
    engine = engine_that_loads(host)
    arriving, tracked = engine.half._arriving, engine.half._tracked["r0"]
    assert len(arriving) == 1
    assert not arriving.decide_wait(tracked, 0) and not len(arriving) and not arriving._marks
    host.end(engine)


@pytest.mark.parametrize("model", MODELS)
def test_requests_that_wait_for_a_failed_load_find_what_is_computed(host: Host, model: str) -> None:
    engine = host.engine(model)
    engine.store_prompt_elsewhere(PREFIX)
    names = submit_many(engine, 4)
    begun = until(engine, lambda: bool(running(engine)), Loads.FAIL)
    assert begun[0] == "r0" and begun.count("r0") == 1
    step(engine)
    if not any(isinstance(group.kind, Recurrent) for group in engine.groups):  # vLLM finds a state when it is computed
        assert begun == ["r0"] and sorted(running(engine)) == names
    host.end(engine)


def engine_that_loads(host: Host) -> HarnessedEngine:
    """Returns an engine in which one of three requests loads, and the others wait."""
    engine = host.engine()
    engine.store_prompt_elsewhere(PREFIX)
    submit_many(engine, 3)
    step(engine, Loads.GO_ON)
    return engine


def test_a_failed_load_on_one_rank_ends_the_wait(host: Host) -> None:
    """The other ranks may still be loading."""
    engine = engine_that_loads(host)
    engine.half.failed({"r0"}, frozenset())
    assert step(engine, Loads.GO_ON) == ["r1"]
    host.end(engine)


def test_after_a_reset_no_request_waits(host: Host) -> None:
    engine = engine_that_loads(host)
    engine.half.renew()
    engine.scheduler.schedule()
    assert not engine.delayed and not len(engine.half._arriving)
    assert running(engine) == ["r1", "r2"]
    engine.scheduler.shutdown()


@pytest.mark.parametrize("model", EVERY_MODEL)
def test_with_blocks_for_few_requests_they_load_less(host: Host, model: str) -> None:
    """Windows and states are evicted between two requests, and so the prefix is loaded again at times."""
    once, each = loaded_with_few_blocks(host, model, "on"), loaded_with_few_blocks(host, model, "off")
    assert once < 0.6 * each


def loaded_with_few_blocks(host: Host, model: str, cache: str) -> int:
    groups = len(groups_of(model).kv_cache_groups) if model != "full" else 1
    engine = host.engine(model, 1 + groups * (len(PREFIX) // BLOCK + 20), cache=cache, prefix_caching="always")
    engine.store_prompt_elsewhere(PREFIX)
    submit_many(engine, 20)
    host.end(engine)
    return engine.loaded_pages


def test_preempted_requests_wait_for_their_prefix(host: Host) -> None:
    engine = host.engine(blocks=180)
    engine.store_prompt_elsewhere(PREFIX)
    submit_many(engine, 8)
    step(engine)
    step(engine)
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    host.end(engine)
    assert engine.loaded_pages == 2 * len(PREFIX) // BLOCK + 8, "each has stored a page of its own"


def test_pages_from_disk_are_loaded_once() -> None:
    with write_through() as daemon, daemon.client() as client:
        host = Host(daemon, client, [])
        engine = host.engine(disk_timeout=20.0)
        engine.store_prompt_elsewhere(PREFIX[: 6 * BLOCK])
        submit_many(engine, 10, PREFIX[: 6 * BLOCK])
        daemon.push_out(client, keys_of(engine, engine.scheduler.requests["r0"], 0).keys[:6])
        with daemon.stopped_worker():  # else the pages may be there before the last request of the step asks
            assert not step(engine) and not running(engine)
        assert eventually(lambda: bool(step(engine, Loads.GO_ON)))
        host.end(engine)
        assert engine.loaded_pages == 6
