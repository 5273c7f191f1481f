"""Runs random sequences of requests in vLLM's scheduler with the connector: nothing leaks, whatever happens to them."""

from __future__ import annotations

import random

import pytest

from harnessed_models import CONTEXT, DRAFTED, MODELS, PIPELINE, aborted, assert_nothing_is_left, engine_of
from harnessed_scheduler import BLOCK, BY_REQUEST, HarnessedEngine
from pagetier.client import Client
from running_daemon import RunningDaemon


@pytest.mark.skipif(not BY_REQUEST, reason="tested from 0.30 on")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("model", "parallel"), [("window", PIPELINE), ("attention", CONTEXT)])
def test_any_sequence_leaves_nothing_on_ranks_with_other_layers_or_tokens(
    model: str, parallel: dict[str, int], seed: int, daemon: RunningDaemon, client: Client
) -> None:
    chance = random.Random(seed)
    blocks, page = chance.choice([60, 200]), BLOCK * parallel.get("decode_context_parallel_size", 1)
    run_any_sequence(engine_of(model, daemon, client, blocks, parallel=parallel, hashed=page), chance, daemon)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("model", (*MODELS, *DRAFTED))
def test_any_sequence_of_requests_leaves_nothing(
    model: str, lag: int, seed: int, daemon: RunningDaemon, client: Client
) -> None:
    """Requests that share prefixes are submitted, aborted and preempted; loads and stores end late, and some fail."""
    chance = random.Random(seed)
    hashed = BLOCK if model in ("full", "draft") or seed % 2 else BLOCK // 2
    engine = engine_of(model, daemon, client, chance.choice([60, 90, 200]), lag=lag, hashed=hashed)
    run_any_sequence(engine, chance, daemon)


def run_any_sequence(engine: HarnessedEngine, chance: random.Random, daemon: RunningDaemon) -> None:
    for turn in range(120):
        if chance.random() < 0.25:
            tokens = chance.randint(1, 250)
            number, common = chance.randint(1, 4), chance.randint(0, tokens)
            if f"id-{number}" not in engine.scheduler.requests:
                engine.submit(number, tokens, common=common, answer=chance.randint(1, 60))
        if chance.random() < 0.3:
            engine.end_loads(fails=chance.random() < 0.3)
        if chance.random() < 0.3:
            engine.end_stores()
        if chance.random() < 0.05 and engine.scheduler.requests:
            engine.scheduler.finish_requests(chance.choice(sorted(engine.scheduler.requests)), aborted())
        if turn % 40 == 39:
            engine.scheduler.reset_prefix_cache()
        engine.step()
    engine.run(2000)
    assert engine.worker.planned_stores
    assert_nothing_is_left(engine, daemon)
