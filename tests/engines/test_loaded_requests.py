"""Tests that vLLM computes a request whose load has ended or failed, whatever waits before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue

from disk_daemon import write_through
from eventually import eventually
from harnessed_models import assert_nothing_is_left, engine_of, keys_of
from harnessed_scheduler import BLOCK, HarnessedEngine
from pagetier.client import Client
from running_daemon import RunningDaemon

BLOCKS = 40  # of vLLM's cache
LARGE, SMALL = range(5000, 5000 + 30 * BLOCK), range(20 * BLOCK)  # prompts that do not fit together


def loading(engine: HarnessedEngine, name: str = "loaded", prompt: Sequence[int] = LARGE) -> Any:
    """Returns a request that holds blocks for a load in progress."""
    engine.store_prompt_elsewhere(prompt[: 2 * BLOCK])
    request = engine.submit_prompt(name, prompt)
    engine.step()
    assert name in engine.worker.loading
    return request


def preferred(engine: HarnessedEngine) -> Any:
    """Submits a request that vLLM begins before all others, and for which it has too few blocks."""
    scheduler = engine.scheduler
    scheduler.policy = SchedulingPolicy.PRIORITY
    for name in ("waiting", "skipped_waiting", "kv_holding_waiting"):  # not all versions have all of them
        if hasattr(scheduler, name):
            queue = create_request_queue(SchedulingPolicy.PRIORITY)
            for waiting in getattr(scheduler, name):
                queue.add_request(waiting)
            setattr(scheduler, name, queue)
    request = engine.request_of("preferred", SMALL)
    request.priority = -1
    engine.store_prompt_elsewhere(SMALL)
    scheduler.add_request(request)
    engine.step()
    assert not request.num_computed_tokens
    return request


def test_a_loaded_request_is_reached_behind_one_that_waited_for_the_disk() -> None:
    with write_through() as daemon, daemon.client() as client:
        engine = engine_of("full", daemon, client, BLOCKS, disk_timeout=20.0)
        engine.store_prompt_elsewhere(SMALL)
        first = engine.submit_prompt("first", SMALL)
        daemon.push_out(client, keys_of(engine, first, 0).keys)
        with daemon.stopped_worker():
            engine.step()
            assert not first.num_computed_tokens, "the request does not wait for the disk"
            second = loading(engine)
        tracked = engine.half._tracked["first"]
        assert eventually(lambda: tracked.prefetch is not None and tracked.prefetch.ready)
        engine.run()
        assert (first.num_output_tokens, second.num_output_tokens) == (6, 6)
        assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("fails", [False, True])
def test_a_loaded_request_is_reached_behind_one_of_a_higher_priority(
    fails: bool, daemon: RunningDaemon, client: Client
) -> None:
    engine = engine_of("full", daemon, client, BLOCKS, engine={"max_num_batched_tokens": 8192})
    loaded = loading(engine)
    first = preferred(engine)
    third = engine.submit_prompt("third", range(9000, 9000 + 4 * BLOCK))
    engine.end_loads(fails=fails)
    engine.step()
    engine.step()
    assert loaded.num_output_tokens == 1
    assert not first.num_computed_tokens and not third.num_computed_tokens, "it overtakes the first one"
    engine.run()
    assert [one.num_output_tokens for one in (first, loaded, third)] == [6, 6, 6]
    assert_nothing_is_left(engine, daemon)


def failed_beside(engine: HarnessedEngine, running: Any, before: Callable[[], Any] = lambda: None) -> Any:
    """Returns a request whose load has failed, and for which vLLM has too few blocks.

    Args:
        engine: The engine.
        running: A request of 5 blocks and an answer of 8.
        before: Called when the load has begun.
    """
    while not running.num_output_tokens:
        engine.step()
    failed = loading(engine)
    before()
    while running.num_output_tokens < 6 * BLOCK:
        engine.step()
    engine.end_loads(fails=True)
    engine.step()
    engine.step()
    assert running.num_output_tokens < running.max_tokens and not failed.num_computed_tokens, "it has room already"
    return failed


def test_a_request_whose_load_failed_is_reached_when_it_gets_its_blocks(daemon: RunningDaemon, client: Client) -> None:
    """vLLM keeps room for it, in which no other load may begin."""
    engine = engine_of("full", daemon, client, BLOCKS)
    running = engine.submit_prompt("running", range(9000, 9000 + 5 * BLOCK), answer=8 * BLOCK)
    failed = failed_beside(engine, running, lambda: preferred(engine))
    first = engine.scheduler.requests["preferred"]
    engine.run()
    assert (first.num_output_tokens, failed.num_output_tokens) == (6, 6)
    assert_nothing_is_left(engine, daemon)


def test_a_request_whose_load_failed_is_computed_after_a_reset(daemon: RunningDaemon, client: Client) -> None:
    """vLLM keeps room for it, beside which a second load of it does not fit."""
    engine = engine_of("full", daemon, client, BLOCKS)
    running = engine.submit_prompt("running", range(9000, 9000 + 5 * BLOCK), answer=8 * BLOCK)
    failed = failed_beside(engine, running)
    engine.scheduler.reset_prefix_cache(reset_connector=True)
    engine.groups = engine.worker.groups = engine.half._groups  # with another salt
    engine.store_elsewhere(failed, len(LARGE))
    engine.run()
    assert failed.num_output_tokens == 6
    assert_nothing_is_left(engine, daemon)


def test_a_preempted_request_is_loaded_although_a_load_failed_before(daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of("full", daemon, client)
    request = loading(engine)
    engine.end_loads(fails=True)
    while not request.num_output_tokens:
        engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert engine.run() >= 2 * BLOCK and request.num_output_tokens == 6
    assert_nothing_is_left(engine, daemon)
