"""Runs random sequences of requests in vLLM's scheduler with the connector: nothing leaks, whatever happens to them.

The tests know the content of each block (see TrueWorker): requests share prefixes, are aborted and preempted, their
loads and stores end late or fail, pages are evicted, and windows and states leave their blocks behind.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from secrets import token_hex

import pytest

from harnessed_models import (
    ALONE,
    CONTEXT,
    DRAFTED,
    FAMILY_NAMES,
    HYBRID,
    LONGER,
    MODELS,
    PIPELINE,
    aborted,
    assert_nothing_is_left,
    engine_of,
)
from harnessed_scheduler import BLOCK, BY_REQUEST, HarnessedEngine
from pagetier.client import Client
from pagetier.client.engines.vllm import scheduler as scheduler_module
from running_daemon import RunningDaemon, namespace

SMALL = ("full", "on eviction", "recurrent only")
"""Models that run a request in 40 blocks, so that a load often gets blocks of which stores still read."""

ANY_MODEL = (*MODELS, *ALONE, *LONGER, *DRAFTED, *(["on eviction"] if BY_REQUEST else []))


@pytest.fixture(scope="module")
def small() -> Iterator[RunningDaemon]:
    """Runs a daemon that evicts pages of these tests."""
    with RunningDaemon("512KiB", "4KiB") as running:
        yield running


@pytest.fixture
def small_client(small: RunningDaemon) -> Iterator[Client]:
    with small.client() as attached:
        yield attached


class Clock:
    """Stands in for the clock of the scheduler's half alone: other threads wait in real time."""

    at = 100.0

    def now(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(scheduler_module, "clock", clock)
    return clock


@pytest.mark.skipif(not BY_REQUEST, reason="tested from 0.30 on")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("model", "parallel"), [("window", PIPELINE), ("attention", CONTEXT)])
def test_any_sequence_leaves_nothing_on_ranks_with_other_layers_or_tokens(
    model: str, parallel: dict[str, int], seed: int, small: RunningDaemon, small_client: Client, clock: Clock
) -> None:
    numbers = chance_of(seed)
    blocks, page = numbers.choice([60, 200]), BLOCK * parallel.get("decode_context_parallel_size", 1)
    engine = engine_of(model, small, small_client, blocks, parallel=parallel, hashed=page)
    run_any_sequence(engine, numbers, small, clock)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("model", ANY_MODEL)
def test_any_sequence_of_requests_leaves_nothing(
    model: str, lag: int, seed: int, small: RunningDaemon, small_client: Client, clock: Clock
) -> None:
    numbers, waits = chance_of(seed), model == "on eviction"
    engine = engine_of(
        "full" if waits else model,
        small,
        small_client,
        numbers.choice([40, 60, 200] if model in SMALL else [65, 90, 200]),
        lag=lag,
        hashed=BLOCK // 2 if model in HYBRID and seed % 2 else BLOCK,
        engine={"max_num_batched_tokens": numbers.choice([32, 64, 96])},
        disk_timeout=0.0,
        store="on_eviction" if waits else "eager",
    )
    assert (engine.half.gpu_pages is not None) is waits
    engine.worker_steps.finalizes = seed < 2  # as not in each stage of a pipeline with drafts
    run_any_sequence(engine, numbers, small, clock)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_any_sequence_of_requests_leaves_nothing_in_a_family(
    family: str, seed: int, small: RunningDaemon, small_client: Client, clock: Clock
) -> None:
    """Also of groups without pages: a hit leaves their state as vLLM needs it."""
    numbers = chance_of(seed)
    budget = numbers.choice([64, 96, 160])
    engine = engine_of(
        family,
        small,
        small_client,
        numbers.choice([150, 300]),
        lag=seed % 2,
        engine={"max_num_batched_tokens": budget},
        disk_timeout=0.0,
    )
    run_any_sequence(engine, numbers, small, clock)


def chance_of(seed: int) -> random.Random:
    """Returns random numbers that differ for each `seed`, and for each $TEST_SEED."""
    return random.Random(f"{os.environ.get('TEST_SEED', '')} {seed}")


def run_any_sequence(engine: HarnessedEngine, numbers: random.Random, daemon: RunningDaemon, clock: Clock) -> None:
    for turn in range(120):
        change_requests(engine, numbers)
        end_copies(engine, numbers)
        if numbers.random() < 0.05:  # so many pages that others may be evicted
            others = namespace(16, salt=token_hex(8)).keys(range(16 * numbers.randint(1, 128)))
            engine.worker.client.store(others, [b"x"] * len(others))
        if turn % 40 == 39:
            engine.scheduler.reset_prefix_cache()
        clock.at += numbers.choice([0.01, 0.01, 0.01, 0.1, 1.0, 3.0])
        engine.step()
        assert all(engine.half._tracked[name].found is None for name in engine.delayed), "it pins pages while it waits"
    engine.run(2000)
    assert engine.worker.planned_stores or engine.half.gpu_pages is not None
    assert_nothing_is_left(engine, daemon)


def change_requests(engine: HarnessedEngine, numbers: random.Random) -> None:
    """Submits a request, aborts one, or does nothing."""
    if numbers.random() < 0.25:
        tokens = numbers.randint(1, 250)
        number, common = numbers.randint(1, 4), numbers.randint(0, tokens)
        if f"id-{number}" not in engine.scheduler.requests:
            engine.submit(number, tokens, common=common, answer=numbers.randint(1, 60))
    if numbers.random() < 0.05 and engine.scheduler.requests:
        engine.scheduler.finish_requests(numbers.choice(sorted(engine.scheduler.requests)), aborted())


def end_copies(engine: HarnessedEngine, numbers: random.Random) -> None:
    """Ends some of the loads and stores in progress, or none."""
    if numbers.random() < 0.3:
        engine.end_loads(fails=numbers.random() < 0.3, most=numbers.choice([1, None]))
    if numbers.random() < 0.2:
        first = numbers.randint(0, 8)
        engine.end_stores(numbers.choice([slice(0, None), slice(first, first + numbers.randint(1, 8))]))
