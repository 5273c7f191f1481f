"""Pages of several blocks in vLLM's real scheduler: hits end with pages, and loads, stores and events are exact.

The tests know the content of each block (see TrueWorker), also of blocks that several pages share.
"""

from __future__ import annotations

from array import array
from hashlib import sha256
from typing import Any

import pytest
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash as external

from harnessed_models import (
    CONTEXT,
    DRAFTED,
    PIPELINE,
    WIDE,
    assert_nothing_is_left,
    engine_of,
)
from harnessed_scheduler import BLOCK, BY_REQUEST
from pagetier.client import Client
from pagetier.client.engines.events.changes import LocationChanges
from pagetier.client.engines.events.table import Change
from pagetier.client.engines.vllm import scheduler as scheduler_module
from pagetier.client.engines.vllm.events import MEDIA, KnownBlock, KnownPage, VllmEvents
from running_daemon import RunningDaemon
from test_random_requests import Clock, chance_of, run_any_sequence

BLOCKS = 2
"""Blocks of a page, which is shorter than the windows and chunks of the models."""

MODELS = ("full", "window", "chunks") if BY_REQUEST else ("full",)
"""Models without recurrent state, which keep pages of one block."""

ANY_MODEL = (*MODELS, WIDE, *DRAFTED, "on eviction") if BY_REQUEST else MODELS

PAGE = BLOCKS * BLOCK


@pytest.mark.parametrize("model", MODELS)
def test_an_engine_loads_its_own_whole_pages(model: str, daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of(model, daemon, client, page_blocks=BLOCKS)
    engine.submit(1, 3 * PAGE + BLOCK + 5)
    assert engine.run() == 0
    assert engine.scheduler.reset_prefix_cache()
    engine.submit(1, 3 * PAGE + BLOCK + 5)
    assert engine.run() == 3 * PAGE
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("computed", range(1, 2 * BLOCKS))
@pytest.mark.parametrize("model", MODELS)
def test_of_a_page_that_vllm_has_the_begin_of_only_the_rest_is_written(
    model: str, computed: int, daemon: RunningDaemon, client: Client
) -> None:
    engine = engine_of(model, daemon, client, page_blocks=BLOCKS)
    engine.submit(1, computed * BLOCK + 3, common=computed * BLOCK, answer=1)
    engine.run()
    request = engine.submit(2, 4 * PAGE + 7, common=computed * BLOCK)
    engine.store_elsewhere(request, 4 * PAGE)
    engine.step()
    assert request.num_computed_tokens == 4 * PAGE
    engine.end_loads()
    assert engine.loaded == {request.request_id: True}
    engine.run()
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("seed", range(5))
def test_routers_hear_of_a_block_while_any_page_has_it(seed: int, daemon: RunningDaemon, client: Client) -> None:
    """Each block is announced once, behind its parent, and removed with the last page that has it."""
    numbers = chance_of(seed)
    events = VllmEvents(LocationChanges(client, 30.0), {}, lambda: False)
    events._of_groups = [{"group_idx": 0}]
    prompts = sorted(numbers.choices("ab", k=3 * 4) for _ in range(12))
    pages = sorted({tuple(prompt[: 3 * size]) for prompt in prompts for size in range(1, 5)}, key=len)
    there: dict[tuple[str, ...], int] = dict.fromkeys(pages, 0)
    router: dict[tuple[str, Any], Any] = {}
    for _ in range(200):
        changed = sorted(numbers.sample(pages, numbers.randint(1, 5)), key=len)
        now = {page: numbers.randrange(4) for page in changed}
        hear(router, events, [Change(page_of(one), now[one] & ~there[one], there[one] & ~now[one]) for one in changed])
        there |= now
        for tier, medium in MEDIA.items():
            blocks = {external(name(page[:end])) for page in pages if there[page] & tier for end in ends_of(page)}
            assert {block for where, block in router if where == medium} == blocks


def ends_of(page: tuple[str, ...]) -> range:
    """Returns where the three blocks of a page end, of which a letter is the content of each."""
    return range(len(page) - 2, len(page) + 1)


def name(blocks: tuple[str, ...]) -> bytes:
    return sha256("".join(blocks).encode()).digest() if blocks else b""


def page_of(page: tuple[str, ...]) -> KnownPage:
    def block(end: int) -> KnownBlock:
        return KnownBlock(name(page[:end]), name(page[: end - 1]) or None, array("I", [end]), None, None)

    return KnownPage(0, len(page) // 3, tuple(map(block, ends_of(page))))


def hear(router: dict[tuple[str, Any], Any], events: VllmEvents, changes: list[Change[KnownPage]]) -> None:
    for event in events._as_events(changes):
        for at, block in enumerate(event.block_hashes):
            known = event.medium, block
            if type(event).__name__ == "BlockRemoved":
                del router[known]  # fails if it was never announced
            else:
                assert known not in router, "announced twice"
                router[known] = event.block_hashes[at - 1] if at else event.parent_block_hash


def test_a_hit_within_a_page_that_vllm_has_loads_nothing(daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of("full", daemon, client, page_blocks=BLOCKS)
    engine.submit(1, 2 * PAGE - 3)
    engine.run()
    engine.submit(1, 2 * PAGE - 3)
    assert engine.run() == 0, "vLLM's own cache has more than the only whole page"
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("model", MODELS)
def test_answers_are_stored_in_whole_pages(model: str, daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of(model, daemon, client, page_blocks=BLOCKS)
    prompt = list(engine.submit(1, PAGE + 3, answer=2 * PAGE + 1).prompt_token_ids)
    engine.run()
    assert engine.scheduler.reset_prefix_cache()
    engine.submit_prompt("again", [*prompt, *[0] * (2 * PAGE)])
    assert engine.run() == 3 * PAGE
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("model", ANY_MODEL)
def test_any_sequence_of_requests_leaves_nothing(
    model: str, seed: int, daemon: RunningDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, clock, waits = chance_of(seed), Clock(), model == "on eviction"
    monkeypatch.setattr(scheduler_module, "clock", clock)
    engine = engine_of(
        "full" if waits else model,
        daemon,
        client,
        numbers.choice([65, 90, 200]),
        lag=seed % 2,
        hashed=BLOCK // 2 if model in MODELS[1:] and seed > 1 else BLOCK,
        engine={"max_num_batched_tokens": numbers.choice([32, 64, 96])},
        disk_timeout=0.0,
        store="on_eviction" if waits else "eager",
        page_blocks=numbers.choice([2, 3, 5]),
    )
    run_any_sequence(engine, numbers, daemon, clock)


@pytest.mark.skipif(not BY_REQUEST, reason="tested from 0.30 on")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("model", "parallel"), [("window", PIPELINE), ("attention", CONTEXT)])
def test_any_sequence_leaves_nothing_on_ranks_with_other_layers_or_tokens(
    model: str,
    parallel: dict[str, int],
    seed: int,
    daemon: RunningDaemon,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers, clock = chance_of(seed), Clock()
    monkeypatch.setattr(scheduler_module, "clock", clock)
    hashed = BLOCK * parallel.get("decode_context_parallel_size", 1)
    engine = engine_of(model, daemon, client, 200, parallel=parallel, hashed=hashed, page_blocks=BLOCKS)
    run_any_sequence(engine, numbers, daemon, clock)
