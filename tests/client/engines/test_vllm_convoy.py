"""Tests that requests that arrive together wait for a prefix that one of them loads, and never without reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import pytest

from disk_daemon import write_through
from eventually import eventually
from fake_vllm_requests import RUNNING
from fake_vllm_scheduler import Turn
from pagetier.client import Client
from pagetier.client.engines.vllm.arriving_pages import PrefixCache
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from running_daemon import RunningDaemon
from simulated_engine import SimulatedEngine

REQUESTS = 50
PAGE = 4
PREFIX = list(range(16 * PAGE))
FULL: tuple[Group, ...] = (FullAttention(PAGE),)
MODELS: dict[str, tuple[Group, ...]] = {
    "full": FULL,
    "windows": (SlidingWindow(PAGE, 2 * PAGE), FullAttention(PAGE)),
    "windows only": (SlidingWindow(PAGE, 3 * PAGE),),
    "recurrent": (Recurrent(PAGE), FullAttention(PAGE)),
    "recurrent only": (Recurrent(PAGE),),
    "all kinds, longer pages": (Recurrent(2 * PAGE), SlidingWindow(PAGE, 9), FullAttention(2 * PAGE)),
}


class Host(NamedTuple):
    daemon: RunningDaemon
    clients: tuple[Client, Client]

    def engine(self, kinds: tuple[Group, ...] = FULL, **settings: Any) -> SimulatedEngine:
        return SimulatedEngine(self.daemon, self.clients, kinds, **settings)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with RunningDaemon("8MiB", "4KiB") as daemon, daemon.client() as scheduler, daemon.client() as worker:
        yield Host(daemon, (scheduler, worker))


def own(number: int, tokens: int = PAGE + 1) -> list[int]:
    """Returns tokens that no other prompt has."""
    return [1000 * (number + 1) + at for at in range(tokens)]


def submit_many(engine: SimulatedEngine, count: int = REQUESTS, begin: list[int] = PREFIX) -> list[str]:
    """Submits requests that begin with the same tokens. Returns their names."""
    names = [f"r{number}" for number in range(count)]
    for number, name in enumerate(names):
        engine.submit(name, begin + own(number))
    return names


def pages_of(engine: SimulatedEngine, tokens: int) -> int:
    """Returns the number of pages that a hit needs."""
    return sum(len(group.kind.pages(tokens)) for group in engine.worker.groups)


@pytest.mark.parametrize("turn", Turn)
@pytest.mark.parametrize("model", MODELS)
def test_a_shared_prefix_is_loaded_once(host: Host, model: str, turn: Turn) -> None:
    engine = host.engine(MODELS[model], turn=turn)
    engine.store_elsewhere(PREFIX)
    names = submit_many(engine)
    assert engine.step() == names[:1]
    assert engine.vllm.delayed == names[1:]
    engine.step()
    if turn is Turn.LOADED_LAST or "recurrent" in model or "kinds" in model:
        # vLLM asked for the others before it put the pages into its own cache, where a state is found a step later.
        assert engine.vllm.delayed == names[1:]
        engine.step()
    assert set(engine.states().values()) == {RUNNING}
    assert engine.loaded_pages == pages_of(engine, len(PREFIX))
    engine.run()
    assert engine.loaded_pages == pages_of(engine, len(PREFIX))


def test_a_request_that_waits_pins_nothing_and_looks_up_nothing(host: Host) -> None:
    engine = host.engine()
    engine.store_elsewhere(PREFIX)
    names = submit_many(engine)
    engine.step(loads_end=False)
    assert engine.pins() == pages_of(engine, len(PREFIX))
    with mock.patch.object(Client, "find_groups", autospec=True, side_effect=Client.find_groups) as match:
        for _ in range(20):
            engine.step(loads_end=False)
            assert engine.vllm.delayed == names[1:]
    assert not match.call_count
    engine.run()


def test_a_request_whose_pages_were_pinned_before_releases_them(host: Host) -> None:
    """It was matched before, but there were too few blocks for it."""
    engine = host.engine(blocks=24)
    engine.store_elsewhere(PREFIX)
    running = engine.submit("running", own(1, 8 * PAGE))
    engine.step()
    engine.submit("loads", PREFIX + own(2))
    engine.step()
    assert engine.states()["loads"] == "waiting" and engine.pins()
    engine.vllm.finish(running)
    engine.submit("waits", PREFIX + own(3))
    engine.step(loads_end=False)
    assert engine.loading() == ["loads"] and engine.vllm.delayed == ["waits"]
    assert engine.pins() == pages_of(engine, len(PREFIX))
    engine.run()


def test_without_a_prefix_cache_of_vllms_own_no_request_waits(host: Host) -> None:
    engine = host.engine(prefix_cache=PrefixCache.OFF)
    engine.store_elsewhere(PREFIX)
    names = submit_many(engine, 3)
    assert engine.step(loads_end=False) == names
    engine.run()


def test_prompts_that_share_nothing_do_not_wait(host: Host) -> None:
    engine = host.engine()
    prompts = [own(number, 8 * PAGE + 1) for number in range(REQUESTS)]
    for number, prompt in enumerate(prompts):
        engine.store_elsewhere(prompt)
        engine.submit(f"r{number}", prompt)
    assert len(engine.step(loads_end=False)) == REQUESTS
    engine.run()


@pytest.mark.parametrize("pages", [2, 4, 16])
def test_prompts_that_share_one_page_do_not_wait(host: Host, pages: int) -> None:
    engine = host.engine()
    prompts = [PREFIX[:PAGE] + own(number, (pages - 1) * PAGE + 1) for number in range(2)]
    for prompt in prompts:
        engine.store_elsewhere(prompt)
    for number, prompt in enumerate(prompts):
        engine.submit(f"r{number}", prompt)
    assert engine.step(loads_end=False) == ["r0", "r1"]
    engine.run()


def test_a_page_that_is_all_that_is_loaded_is_waited_for(host: Host) -> None:
    engine = host.engine()
    engine.store_elsewhere(PREFIX[:PAGE])
    submit_many(engine, 3, PREFIX[:PAGE])
    assert engine.step() == ["r0"]
    engine.run()
    assert engine.loaded_pages == 1


def test_a_short_prompt_does_not_wait_for_a_much_longer_load(host: Host) -> None:
    engine = host.engine()
    long = PREFIX + own(1, 8 * len(PREFIX))
    engine.store_elsewhere(long)
    engine.submit("long", long)
    engine.submit("short", [*PREFIX, 7])
    assert engine.step(loads_end=False) == ["long", "short"]
    engine.run()


def test_a_long_prompt_does_not_wait_for_a_small_part_of_it(host: Host) -> None:
    engine = host.engine()
    engine.store_elsewhere(PREFIX)
    engine.submit("short", [*PREFIX, 7])
    engine.submit("long", PREFIX + own(1, 8 * len(PREFIX)))
    assert engine.step(loads_end=False) == ["short", "long"]
    engine.run()


@pytest.mark.parametrize("turn", Turn)
def test_of_partly_shared_prefixes_each_page_is_loaded_once(host: Host, turn: Turn) -> None:
    engine = host.engine(turn=turn)
    prompts = [PREFIX + own(number, 8 * PAGE + 1) for number in range(10)]
    for number, prompt in enumerate(prompts):
        engine.store_elsewhere(prompt)
        engine.submit(f"r{number}", prompt)
    assert engine.step() == ["r0"]
    engine.run()
    assert engine.loaded_pages == len(PREFIX) // PAGE + 10 * 8


def test_prefixes_that_branch_twice_are_loaded_once(host: Host) -> None:
    """The second wait is for more tokens than the first one."""
    engine = host.engine()
    prompts = [PREFIX + own(number // 5, 8 * PAGE) + own(100 + number, 4 * PAGE + 1) for number in range(20)]
    for number, prompt in enumerate(prompts):
        engine.store_elsewhere(prompt)
        engine.submit(f"r{number}", prompt)
    engine.run()
    assert engine.loaded_pages == len(PREFIX) // PAGE + 4 * 8 + 20 * 4


@pytest.mark.parametrize("model", ["windows", "windows only", "recurrent", "recurrent only"])
def test_a_hybrid_model_does_not_wait_without_windows_and_states(host: Host, model: str) -> None:
    """The pages of full attention are on their way, but not the state where the prompts branch."""
    engine = host.engine(MODELS[model])
    prompts = [PREFIX + own(number, 8 * PAGE + 1) for number in range(2)]
    for prompt in prompts:
        engine.store_elsewhere(prompt)
    engine.submit("r0", prompts[0])
    engine.submit("r1", prompts[1])
    assert engine.step(loads_end=False) == ["r0", "r1"]
    engine.run()


def test_another_request_loads_after_an_abort(host: Host) -> None:
    engine = host.engine()
    engine.store_elsewhere(PREFIX)
    submit_many(engine, 5)
    assert engine.step(loads_end=False) == ["r0"]
    engine.vllm.finish(engine.vllm.requests["r0"])
    assert engine.step(loads_end=False) == ["r1"]
    engine.vllm.finish(engine.vllm.requests["r2"])
    engine.run()
    assert engine.loaded_pages == 2 * len(PREFIX) // PAGE


def test_a_request_that_finds_less_than_it_waited_for_waits_once_more(host: Host) -> None:
    engine = host.engine()
    engine.store_elsewhere(PREFIX)
    submit_many(engine, 6)
    for number in (0, 1):
        assert engine.step(loads_end=False) == [f"r{number}"]
        engine.vllm.finish(engine.vllm.requests[f"r{number}"])
    assert engine.step(loads_end=False) == ["r2", "r3", "r4", "r5"]
    engine.run()


def test_requests_that_wait_for_a_failed_load_find_what_is_computed(host: Host) -> None:
    engine = host.engine()
    engine.store_elsewhere(PREFIX)
    submit_many(engine, 4)
    assert [engine.step(fails=True) for _ in range(3)] == [["r0"], ["r0"], []]
    assert set(engine.states().values()) == {RUNNING}
    engine.run()


def test_a_failed_load_on_one_rank_ends_the_wait(host: Host) -> None:
    """The other ranks may still be loading."""
    engine = host.engine()
    engine.store_elsewhere(PREFIX)
    submit_many(engine, 3)
    engine.step(loads_end=False)
    engine.half.failed({"r0"}, frozenset())
    assert engine.step(loads_end=False) == ["r1"]
    engine.run()


def test_after_a_reset_no_request_waits(host: Host) -> None:
    engine = host.engine()
    engine.store_elsewhere(PREFIX)
    submit_many(engine, 3)
    engine.step(loads_end=False)
    engine.half.renew()
    engine.vllm.schedule()
    assert not engine.vllm.delayed and not len(engine.half._arriving)
    assert engine.states()["r1"] == RUNNING
    for request in list(engine.vllm.requests.values()):
        engine.vllm.finish(request)
    engine.half.loaded(["r0"])


@pytest.mark.parametrize("model", MODELS)
def test_with_blocks_for_few_requests_they_load_less(host: Host, model: str) -> None:
    """Windows and states are evicted between two requests, and so the prefix is loaded again at times."""
    loaded = {prefix_cache: loaded_with_few_blocks(host, MODELS[model], prefix_cache) for prefix_cache in PrefixCache}
    assert loaded[PrefixCache.ON] < 0.6 * loaded[PrefixCache.OFF]


def loaded_with_few_blocks(host: Host, kinds: tuple[Group, ...], prefix_cache: PrefixCache) -> int:
    blocks = 1 + len(kinds) * (len(PREFIX) // PAGE + 20)
    engine = host.engine(kinds, blocks=blocks, prefix_cache=prefix_cache)
    engine.store_elsewhere(PREFIX)
    submit_many(engine, 20)
    engine.run()
    return engine.loaded_pages


def test_preempted_requests_wait_for_their_prefix(host: Host) -> None:
    engine = host.engine(blocks=80)
    engine.store_elsewhere(PREFIX)
    submit_many(engine, 8)
    engine.step()
    engine.step()
    for request in list(reversed(engine.vllm.running)):
        engine.vllm._preempt(request)
    engine.vllm.pool.forget()
    engine.run()
    assert engine.loaded_pages == 2 * len(PREFIX) // PAGE + 8, "each has stored a page of its own"


def test_pages_from_disk_are_loaded_once() -> None:
    with write_through() as daemon, daemon.client() as scheduler, daemon.client() as worker:
        engine = SimulatedEngine(daemon, (scheduler, worker), FULL, disk_timeout=20.0)
        engine.store_elsewhere(PREFIX[: 6 * PAGE])
        names = submit_many(engine, 10, PREFIX[: 6 * PAGE])
        daemon.push_out(worker, engine.half._groups[0].keys(engine.vllm.requests["r0"].block_hashes[:6]))
        with daemon.stopped_worker():  # else the pages may be there before the last request of the step asks
            assert not engine.step() and engine.vllm.delayed == names
        assert eventually(lambda: bool(engine.step(loads_end=False)), 20.0)
        engine.run()
        assert engine.loaded_pages == 6
        engine.half.close()
