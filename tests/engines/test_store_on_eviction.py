"""Tests `"store": "on_eviction"` with vLLM's own blocks and in a real engine: nothing leaks, and bytes are right."""

from __future__ import annotations

import random

import pytest
from vllm.v1.request import RequestStatus

from harnessed_models import assert_nothing_is_left
from harnessed_scheduler import BLOCK, HarnessedEngine
from one_host import ask, exact, prompt, scene_of
from pagetier.client import Client
from running_daemon import RunningDaemon
from seeded_random import chance

BLOCKS = 60


def engine_of(daemon: RunningDaemon, client: Client, lag: int = 0) -> HarnessedEngine:
    engine = HarnessedEngine(
        daemon, client, blocks=BLOCKS, salt=random.randbytes(8).hex(), store="on_eviction", lag=lag
    )
    assert engine.half.gpu_pages is not None
    return engine


@pytest.mark.parametrize("lag", [0, 1])
def test_only_pages_that_leave_the_block_pool_are_stored(daemon: RunningDaemon, client: Client, lag: int) -> None:
    engine = engine_of(daemon, client, lag=lag)
    engine.submit(0, 10 * BLOCK + 1)
    engine.run()
    assert not engine.worker.planned_stores
    for number in range(1, 12):
        engine.submit(number, 10 * BLOCK + 1)
        engine.run()
    assert 40 <= engine.worker.planned_stores < 11 * 10
    engine.submit(0, 10 * BLOCK + 1)
    assert engine.run() == 10 * BLOCK
    assert_nothing_is_left(engine, daemon)


def test_aborted_and_preempted_requests_leave_no_block_behind(daemon: RunningDaemon, client: Client) -> None:
    numbers = chance()
    engine = engine_of(daemon, client, lag=1)
    for number in range(60):
        engine.submit(
            number, int(numbers.integers(8, 20)) * BLOCK + 3, common=int(numbers.choice([0, 64, 128])), answer=40
        )
        for _ in range(numbers.integers(4)):
            engine.end_stores()
            engine.end_loads()
            engine.step()
        living = [name for name, one in engine.scheduler.requests.items() if not one.is_finished()]
        if living and numbers.random() < 0.3:
            engine.scheduler.finish_requests(str(numbers.choice(living)), RequestStatus.FINISHED_ABORTED)
    engine.run(3000)
    assert engine.worker.planned_stores
    assert len(engine.half.gpu_pages or ()) < BLOCKS
    assert_nothing_is_left(engine, daemon)


def test_a_reset_of_vllms_cache_succeeds_while_stores_run(daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of(daemon, client)
    for number in range(8):
        engine.submit(number, 10 * BLOCK + 1)
        while engine.scheduler.requests or engine.scheduler.finished_req_ids:
            engine.step()
    assert engine.worker.reading, "stores are in progress"
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    assert not len(engine.half.gpu_pages or ())
    engine.run()
    assert_nothing_is_left(engine, daemon)


def test_a_real_engine_finds_the_pages_that_fell_out_of_its_cache() -> None:
    with scene_of("llama") as scene:
        small = {"num_gpu_blocks_override": 40, "max_num_batched_tokens": 512, "max_model_len": 1400}
        stored: dict[str, int] = {}
        for store in ("eager", "on_eviction"):
            with scene.engine(engine=small, extra={"store": store, "salt": store}) as engine:
                first = [ask(engine, prompt(number)) for number in range(8)]
                scene.settle()
                stored[store] = scene.daemon.header().pages - sum(stored.values())
                if store == "eager":
                    continue
                again = ask(engine, prompt(7))
                assert again["external"] == 0 and again["answers"][0]["cached"] == scene.hit(), "still on the GPU"
                for number in (0, 1):
                    again = ask(engine, prompt(number))
                    assert again["external"] == scene.hit()
                    assert [one[0] for one in exact(again)] == [one[0] for one in exact(first[number])]
                    scene.settle()
                    assert exact(ask(engine, prompt(number))) == exact(again), "as from vLLM's own cache"
        assert stored["eager"] == 8 * (scene.hit() // 128)
        assert 0 < stored["on_eviction"] <= stored["eager"] - 8, stored
