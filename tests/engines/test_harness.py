"""Runs the connector in vLLM's scheduler, driven by vLLM's own harness: nothing leaks, however a request ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from disk_daemon import write_through
from eventually import eventually
from harnessed_models import (
    CONTEXT,
    DRAFTED,
    LONGER,
    MODELS,
    PIPELINE,
    PROMPTS,
    aborted,
    assert_nothing_is_left,
    engine_of,
    keys_of,
)
from harnessed_scheduler import BLOCK, BY_REQUEST, PAGE, HarnessedEngine, Loads, open_half
from lookup_counts import counted
from pagetier.client import Client
from pagetier.client.engines.vllm.connector_metadata import ShapesMetadata
from pagetier.shm import clock
from running_daemon import RunningDaemon
from seeded_random import chance
from vllm_harness import harness


@pytest.mark.parametrize("model", MODELS)
def test_pages_of_another_process_are_loaded(model: str, daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of(model, daemon, client)
    request = engine.submit(1, 100)
    engine.store_elsewhere(request, 96)
    engine.step()
    assert list(engine.worker.loading) == [request.request_id]
    assert request.num_computed_tokens == 96
    engine.run()
    assert not engine.worker.planned_stores, "cached pages are stored again"
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("model", MODELS)
def test_pages_beyond_vllms_own_prefix_cache_are_loaded(model: str, daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of(model, daemon, client)
    engine.submit(1, 70, common=64)
    engine.run()
    request = engine.submit(2, 200, common=64)
    engine.store_elsewhere(request, 192)
    engine.step()
    assert request.num_computed_tokens == 192
    engine.end_loads()
    assert engine.loaded == {request.request_id: True}
    engine.run()
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("model", MODELS)
def test_an_engine_loads_its_own_pages(model: str, daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of(model, daemon, client)
    engine.submit(1, 100)
    assert engine.run() == 0
    assert engine.scheduler.reset_prefix_cache()
    request = engine.submit(1, 100)
    assert engine.run() == 96 and request.num_output_tokens == 4
    assert_nothing_is_left(engine, daemon)


@pytest.mark.skipif("recurrent" not in MODELS, reason="several groups need vLLM 0.30")
def test_a_request_that_begins_within_a_block_is_stored(daemon: RunningDaemon, client: Client) -> None:
    """vLLM names the hit of its own cache up to the block in which it ends."""
    engine = engine_of("recurrent", daemon, client, hashed=BLOCK // 2)
    prompt = list(range(92))
    engine.submit_prompt("first", prompt, answer=4)
    engine.run()
    prompt += range(5000, 5200)
    engine.submit_prompt("second", prompt, answer=4)
    (begun,) = engine.step().scheduled_new_reqs
    assert begun.num_computed_tokens % BLOCK, "its hit ends with a block"
    engine.run()
    assert engine.scheduler.reset_prefix_cache()
    engine.submit_prompt("third", prompt, answer=4)
    assert engine.run() == len(prompt) // BLOCK * BLOCK
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("model", MODELS)
def test_answers_are_stored(model: str, daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of(model, daemon, client)
    engine.submit(1, 90, answer=40)
    engine.run()
    assert engine.scheduler.reset_prefix_cache()
    request = harness().create_request(request_id=1, num_tokens=90, max_tokens=1, block_size=BLOCK)
    request.append_output_token_ids([0] * 50)
    engine.worker.know(request.block_hashes, (*request.all_token_ids, 0))
    with client.match_groups([keys_of(engine, request, at) for at in range(len(engine.groups))]) as match:
        assert match.tokens == 128
    assert_nothing_is_left(engine, daemon)


@pytest.mark.skipif(not BY_REQUEST, reason="tested from 0.30 on")
@pytest.mark.parametrize(
    ("model", "parallel"),
    [("full", PIPELINE), ("window", PIPELINE), ("attention", CONTEXT), ("attention", CONTEXT | PROMPTS)],
)
def test_ranks_with_other_layers_or_tokens_have_pages_of_their_own(
    model: str, parallel: dict[str, int], daemon: RunningDaemon, client: Client
) -> None:
    """A hit needs the pages of all of them, and one of them that cannot load makes the whole load fail."""
    page = BLOCK * parallel.get("decode_context_parallel_size", 1)
    engine = engine_of(model, daemon, client, parallel=parallel, hashed=page)
    assert len(engine.workers) == 2
    engine.submit(1, 200, answer=40)
    assert engine.run() == 0
    assert engine.scheduler.reset_prefix_cache()
    engine.submit(1, 200)
    assert engine.run() == 199 // page * page
    assert_nothing_is_left(engine, daemon)

    half = engine_of(model, daemon, client, parallel=parallel, hashed=page)
    request = half.submit(2, 100)
    for group in half.workers[0].groups:
        half.store_group_elsewhere(request, group, 96)
    assert half.run() == 0, "the pages of the other ranks are absent"
    assert_nothing_is_left(half, daemon)


@pytest.mark.parametrize("model", DRAFTED)
def test_a_hit_ends_a_page_earlier_with_a_draft_model(model: str, daemon: RunningDaemon, client: Client) -> None:
    """The draft model's state at the last token of a page depends on the token after it."""
    engine = engine_of(model, daemon, client)
    engine.submit(1, 100, common=96)
    assert engine.run() == 0
    assert engine.scheduler.reset_prefix_cache()
    request = engine.submit(1, 100, common=96)
    assert engine.run() == 80 and request.num_output_tokens == 4
    assert engine.scheduler.reset_prefix_cache()
    longer = engine.submit(2, 200, common=96)
    assert engine.run() == 80 and longer.num_output_tokens == 4
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("model", DRAFTED)
def test_the_last_page_of_an_answer_is_stored_when_it_ends(model: str, daemon: RunningDaemon, client: Client) -> None:
    """Before, a draft model's state in it may still change."""
    engine = engine_of(model, daemon, client)
    request = engine.submit(1, 90, answer=40)
    at = len(engine.groups) - 1

    def stored() -> int:
        engine.end_stores()
        keys = keys_of(engine, request, at).keys
        return sum(len(client.match(keys[page : page + 1])) for page in range(len(keys)))

    engine.step()
    engine.step()
    assert (request.num_computed_tokens, stored()) == (90, 90 // BLOCK)
    while not request.is_finished():
        assert stored() == max(90, request.num_computed_tokens - BLOCK) // BLOCK
        engine.step()
    engine.run()
    assert stored() == (90 + 39) // BLOCK
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("model", MODELS)
def test_a_stage_whose_steps_vllm_does_not_finalize_stores(
    model: str, lag: int, daemon: RunningDaemon, client: Client
) -> None:
    """With drafts vLLM's V1 model runner finalizes only the steps of the last stage of a pipeline."""
    engine = engine_of(model, daemon, client, 60, lag=lag)
    engine.worker_steps.finalizes = False
    engine.submit(1, 60, answer=150)
    engine.submit(2, 156, answer=5)  # with lag, its last page has a key when it has ended, while the other is computed
    while len(engine.scheduler.requests) == 2:
        engine.step()
    engine.end_stores()
    engine.submit(3, 156, answer=100)
    engine.run()
    assert engine.worker.planned_stores >= (210 + 160 + 256) // BLOCK - 1
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("model", (*MODELS, *DRAFTED))
@pytest.mark.parametrize("state", ["waiting", "loading", "loaded", "computing", "answering"])
def test_aborted_requests_leave_nothing(model: str, state: str, daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of(model, daemon, client)
    request = engine.submit(1, 200, answer=20)
    if state.startswith("load"):
        engine.store_elsewhere(request, 96)
    for _ in range({"waiting": 0, "loading": 1, "loaded": 1, "computing": 1, "answering": 8}[state]):
        engine.step()
    if state == "loaded":
        engine.end_loads()
        engine.step()
    assert bool(engine.worker.loading) == (state == "loading")
    engine.scheduler.finish_requests(request.request_id, aborted())
    engine.run()
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("times", [1, 5])
def test_a_request_whose_load_fails_is_computed(model: str, times: int, daemon: RunningDaemon, client: Client) -> None:
    """The request is computed in the end, although each match finds its pages."""
    engine = engine_of(model, daemon, client)
    request = engine.submit(1, 100)
    engine.store_elsewhere(request, 96)
    for _ in range(times):
        engine.step()
        engine.end_loads(fails=True)
        engine.step()
    engine.run()
    assert request.num_output_tokens == 4
    assert_nothing_is_left(engine, daemon)


def test_requests_whose_loads_fail_do_not_hold_each_other_up(daemon: RunningDaemon, client: Client) -> None:
    """vLLM keeps the blocks of a failed load reserved, so that a second load might never fit beside the others."""
    engine = engine_of("full", daemon, client, 40)
    for number in range(2):
        prompt = range(1000 * number, 1000 * number + 15 * BLOCK)
        engine.store_prompt_elsewhere(prompt)
        engine.submit_prompt(f"r{number}", prompt)
    engine.step()
    assert len(engine.worker.loading) == 2
    engine.end_loads(fails=True)
    engine.run()
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("model", (*MODELS, *DRAFTED))
def test_preempted_requests_leave_nothing(model: str, daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of(model, daemon, client, 40)
    requests = [engine.submit(number, 100, common=50, answer=120) for number in range(1, 5)]
    engine.run(3000)
    assert sum(request.num_preemptions for request in requests)
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("model", MODELS)
def test_a_waiting_request_is_matched_once_in_two_seconds(model: str, daemon: RunningDaemon, client: Client) -> None:
    """vLLM asks in each step for a request that has no blocks yet."""
    engine = engine_of(model, daemon, client)
    engine.submit(1, 30, answer=100)
    for _ in range(4):
        engine.step()
    pool = engine.scheduler.kv_cache_manager.block_pool
    taken = pool.get_new_blocks(pool.get_num_free_blocks() - 10)
    waiting = engine.submit(2, 300)
    engine.store_elsewhere(waiting, 288)
    now = clock.now()
    with (
        mock.patch.object(clock, "now", side_effect=lambda: now),
        mock.patch.object(Client, "find_groups", autospec=True, side_effect=Client.find_groups) as match,
        mock.patch.object(engine.half, "matched", side_effect=engine.half.matched) as asked,
    ):
        for seconds, matches in ((0.0, 1), (1.9, 1), (0.2, 2)):
            now += seconds
            for _ in range(20):
                engine.step()
            assert match.call_count == matches
    assert asked.call_count >= 60
    pool.free_blocks(taken)
    engine.run(1000)
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("loads", [Loads.SUCCEED, Loads.FAIL])
@pytest.mark.parametrize("model", (*MODELS, *LONGER))
def test_three_counts_of_many_requests_agree(model: str, loads: Loads, daemon: RunningDaemon, client: Client) -> None:
    """Requests share prefixes, and some are preempted. vLLM counts loads that fail as hits."""
    daemon.drop_all_pages()
    before, numbers = counted(daemon), chance()
    engine = engine_of(model, daemon, client, 40, disk_timeout=0.0)
    made, make_stats = [], engine.scheduler.make_stats

    def kept(*args: Any, **more: Any) -> Any:
        made.append(make_stats(*args, **more))
        return made[-1]

    with mock.patch.object(engine.scheduler, "make_stats", kept):
        for number in range(40):
            submit_and_step(engine, number, loads, numbers)
        engine.run(3000)
    counts = counted(daemon).since(before)
    reported = sum((one.kv_connector_stats or {}).get("memory_tokens", 0) for one in made)
    assert counts.lookups == 40 and 0 < counts.memory == reported and counts.disk == 0 < counts.missed
    if loads is Loads.SUCCEED:
        vllm = [one.connector_prefix_cache_stats for one in made]
        assert (sum(one.requests for one in vllm), sum(one.hits for one in vllm)) == (40, counts.memory)
    assert_nothing_is_left(engine, daemon)


def submit_and_step(engine: HarnessedEngine, number: int, loads: Loads, numbers: np.random.Generator) -> None:
    """Submits a request, and runs some steps. Every fourth time it ends all requests, and resets vLLM's own cache."""
    family = 1000 * int(numbers.integers(2))
    prompt = range(family, family + int(numbers.integers(16, 160)))
    engine.submit_prompt(f"r{number}", prompt, answer=int(numbers.integers(1, 100)))
    for _ in range(numbers.integers(1, 5)):
        engine.end_stores()
        engine.step(loads if numbers.random() < 0.1 else Loads.SUCCEED)
    if number % 4 == 3:
        engine.run(1000)
        assert engine.scheduler.reset_prefix_cache()


def test_a_request_that_skips_the_prefix_cache_loads_nothing(daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of("full", daemon, client)
    request = harness().create_request(request_id=1, num_tokens=100, max_tokens=2, block_size=BLOCK)
    request.skip_reading_prefix_cache = True
    engine.store_elsewhere(request, 96)
    engine.scheduler.add_request(request)
    assert engine.run() == 0
    assert_nothing_is_left(engine, daemon)


def test_nothing_is_cached_if_a_rank_cannot_cache(daemon: RunningDaemon, client: Client) -> None:
    """A load ends when all ranks have ended it; a request would wait forever for a rank that never does."""
    connector = HarnessedEngine(daemon, client, None, salt="ranks").connector
    connector._scheduler.close()
    connector._scheduler, shapes = None, ShapesMetadata((PAGE,))
    connector._config.parallel_config.tensor_parallel_size = 2
    for reported, opens in (([shapes], False), ([shapes, shapes], True)):
        connector._asked_to_open = False
        open_half(connector, *reported)
        assert (connector._scheduler is not None) is opens
    connector._scheduler.close()


def test_requests_are_computed_without_a_daemon(tmp_path: Path, client: Client) -> None:
    absent = mock.Mock(socket=tmp_path / "absent.sock")
    engine = engine_of("all" if BY_REQUEST else "full", absent, client)
    request = engine.submit(1, 100)
    assert engine.run() == 0 and request.num_output_tokens == 4
    engine.scheduler.shutdown()


def test_a_request_waits_for_the_disk() -> None:
    with write_through() as daemon, daemon.client() as client:
        engine = engine_of("full", daemon, client, disk_timeout=20.0)
        request = engine.submit(1, 100)
        engine.store_elsewhere(request, 96)
        daemon.push_out(client, keys_of(engine, request, 0).keys)
        engine.step()
        assert not request.num_computed_tokens and not engine.worker.loading, "the request did not wait"

        def loads() -> bool:
            engine.step()
            return bool(engine.worker.loading)

        assert eventually(loads)
        assert request.num_computed_tokens == 96
        engine.run()
        assert_nothing_is_left(engine, daemon)


def test_a_request_does_not_wait_longer_than_the_deadline() -> None:
    with write_through() as daemon, daemon.client() as client:
        engine = engine_of("full", daemon, client, disk_timeout=0.3)
        request = engine.submit(1, 100)
        engine.store_elsewhere(request, 96)
        daemon.push_out(client, keys_of(engine, request, 0).keys)
        with (
            daemon.stopped_worker(),
            mock.patch.object(Client, "find_groups", autospec=True, side_effect=Client.find_groups) as match,
        ):
            engine.step()
            assert not request.num_computed_tokens, "the request waits"
            while not request.num_computed_tokens:
                engine.step()
            assert not engine.worker.loading
            assert match.call_count <= 2
            engine.run()
        assert_nothing_is_left(engine, daemon)
