"""Tests recurrent states that vLLM leaves within a step, at the last block of a prompt (its prefill checkpoints)."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm.v1.kv_cache_layout", reason="tested from 0.32 on")

from harnessed_models import assert_nothing_is_left, engine_of
from harnessed_scheduler import HarnessedEngine
from pagetier.client import Client
from running_daemon import RunningDaemon

BLOCK = 32
PROMPT = 250
CHECKPOINT = PROMPT // BLOCK * BLOCK
WITH_CHECKPOINTS = ["Falcon-H1, Nemotron-H on a GPU", "Mamba 2 on a GPU"]


def engine_of_one_step(family: str, daemon: RunningDaemon, client: Client, **settings: Any) -> HarnessedEngine:
    """Returns an engine that computes a prompt in one step, which leaves states in the middle and at its end."""
    engine = engine_of(family, daemon, client, engine={"max_num_batched_tokens": 512}, **settings)
    engine.submit(1, PROMPT, common=PROMPT)
    assert engine.step().num_scheduled_tokens == {"id-1": PROMPT}, "vLLM ends a step at the last block"
    engine.run()
    return engine


@pytest.mark.parametrize("family", WITH_CHECKPOINTS)
def test_a_state_within_a_step_is_found(family: str, daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of_one_step(family, daemon, client)
    engine.scheduler.reset_prefix_cache()
    request = engine.submit(1, PROMPT, common=PROMPT)
    engine.step()
    assert request.num_computed_tokens == CHECKPOINT
    engine.run()
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("family", WITH_CHECKPOINTS)
def test_a_longer_prompt_begins_with_a_state_within_a_step(family: str, daemon: RunningDaemon, client: Client) -> None:
    """The step behind it leaves a state of its own."""
    engine = engine_of_one_step(family, daemon, client)
    engine.scheduler.reset_prefix_cache()
    longer = engine.submit(2, 2 * PROMPT, common=PROMPT)
    engine.step()
    assert longer.num_computed_tokens == CHECKPOINT
    engine.run()
    engine.scheduler.reset_prefix_cache()
    again = engine.submit(2, 2 * PROMPT, common=PROMPT)
    engine.step()
    assert again.num_computed_tokens == (2 * PROMPT - 1) // BLOCK * BLOCK
    engine.run()
    assert_nothing_is_left(engine, daemon)


def test_a_state_within_a_block_is_no_page(daemon: RunningDaemon, client: Client) -> None:
    """With --prefix-match-unit vLLM leaves it in the block before that of its tokens."""
    engine = engine_of_one_step("Falcon-H1, Nemotron-H on a GPU", daemon, client, hashed=BLOCK // 2)
    engine.scheduler.reset_prefix_cache()
    engine.submit(1, PROMPT, common=PROMPT)
    assert engine.run() == 0
    assert_nothing_is_left(engine, daemon)
