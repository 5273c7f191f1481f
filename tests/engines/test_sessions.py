"""Tests streaming input sessions: requests that get more tokens after their answer, whose last token vLLM drops."""

from __future__ import annotations

from collections import deque
from copy import copy
from types import SimpleNamespace
from typing import Any, Final

import pytest

from harnessed_models import aborted, engine_of
from harnessed_scheduler import BLOCK, VERSION, HarnessedEngine
from pagetier.client import Client
from pagetier.client.engines.vllm.connector import _caches_sessions
from pagetier.client.engines.weights import ModelIdentity
from pagetier.shm._core import KEY_BYTES
from running_daemon import RunningDaemon

PROMPT: Final = [*range(2 * BLOCK - 3)]
ANSWER: Final = [0, 0, 0]  # with it the prompt fills two blocks
DRAFTS: Final = SimpleNamespace(method="ngram", num_speculative_tokens=2)


def _chunk(engine: HarnessedEngine, tokens: list[int], answer: int = 3) -> Any:
    request = engine.request_of("session", tokens, answer)
    request.resumable, request.streaming_queue = True, deque()
    engine.scheduler.add_request(request)
    return request


def _stored(engine: HarnessedEngine, steps: int) -> dict[int, bytes]:
    """Runs some steps. Returns the keys of the pages that they store, by their index."""
    found = {}
    for _ in range(steps):
        for store in engine.step().kv_connector_metadata.commands.stores:
            for at in range(store.pages):
                found[store.first + at] = store.keys[at * KEY_BYTES : (at + 1) * KEY_BYTES]
    return found


def _keys(engine: HarnessedEngine, tokens: list[int]) -> list[bytes]:
    return list(engine.groups[0].keys(engine.request_of("keys", tokens).block_hashes))


def test_no_page_is_stored_under_the_key_of_other_tokens(daemon: RunningDaemon, client: Client) -> None:
    """Up to 0.31 vLLM keeps the hash of a block whose last token it has replaced, and finds that block by it."""
    engine = HarnessedEngine(daemon, client)
    engine.workers = []  # they know the content of a block by its hash
    session = _chunk(engine, PROMPT)
    before = _stored(engine, 5)
    assert len(session.block_hashes) == 2 and session.num_computed_tokens == 2 * BLOCK - 1
    _chunk(engine, [777] * 20)
    stored = before | _stored(engine, 6)
    true = _keys(engine, list(session.all_token_ids))
    replaced = _keys(engine, [*PROMPT, *ANSWER])[1]
    assert all(key == true[at] for at, key in stored.items())
    hashed_again = true[1] != replaced and list(engine.groups[0].keys(session.block_hashes))[1] == true[1]
    assert (1 in stored) is hashed_again
    engine.submit_prompt("later", [*PROMPT, *ANSWER, *[5] * 20])
    assert (_stored(engine, 3).get(1) == replaced) is hashed_again
    engine.scheduler.shutdown()


def test_blocks_of_sessions_before_the_weights_were_identified_are_not_stored(
    daemon: RunningDaemon, client: Client
) -> None:
    """Up to 0.31 vLLM's own cache finds a block of such a session by the hash of other tokens."""
    engine = HarnessedEngine(daemon, client)
    engine.workers = []
    half, engine.connector._scheduler = engine.connector._scheduler, None
    pending = engine.connector._pending = SimpleNamespace(ready=False, identity=ModelIdentity(), open=lambda: half)
    session = _chunk(engine, PROMPT)
    _stored(engine, 5)
    _chunk(engine, [777] * 20)
    _stored(engine, 6)
    engine.scheduler.finish_requests("session", aborted())
    pending.ready = True
    replaced = _keys(engine, [*PROMPT, *ANSWER])[1]
    stale = len(session.block_hashes) > 1 and list(engine.groups[0].keys(session.block_hashes))[1] == replaced
    engine.submit_prompt("later", [*PROMPT, *ANSWER, *[5] * 20])
    stored = _stored(engine, 3)
    assert engine.connector._scheduler is half
    assert (stored.get(1) == replaced) is not stale
    engine.scheduler.shutdown()


def test_no_page_of_a_session_has_a_draft_behind_its_stop(daemon: RunningDaemon, client: Client) -> None:
    """Up to 0.32 vLLM counts it as computed, although the session has another token there."""
    engine = HarnessedEngine(daemon, client)
    engine.workers, engine.scheduler.log_stats = [], False
    config = copy(engine.connector._config)
    config.speculative_config = DRAFTS
    engine.half.caches_sessions = _caches_sessions(config, None)
    session = _chunk(engine, PROMPT, answer=2)
    engine.step()
    session.spec_token_ids = [0, 0]
    output = engine.scheduler.schedule()
    answer = engine._answer([engine._computed("session", 3)])
    answer.sampled_token_ids[0] = [0, 0, 0]
    engine.scheduler.update_from_output(output, answer)
    assert session.num_tokens == 2 * BLOCK - 1, "it has not stopped at its second token"
    _chunk(engine, [777] * 20)
    computes_it = session.num_computed_tokens < 2 * BLOCK
    assert (1 in _stored(engine, 2)) is computes_it
    engine.scheduler.shutdown()


@pytest.mark.skipif(VERSION < (0, 32), reason="no session is cached before")
@pytest.mark.parametrize("lag", [0, 1])
def test_no_state_is_stored_that_has_a_token_behind_its_session(
    lag: int, daemon: RunningDaemon, client: Client
) -> None:
    """With asynchronous scheduling the step after the stop has computed the token that the session drops."""
    engine = engine_of("recurrent", daemon, client, lag=lag)
    engine.workers = []
    session = _chunk(engine, PROMPT)
    _stored(engine, 6)
    _chunk(engine, [777] * 20)
    stored = _stored(engine, 6)
    assert session.num_computed_tokens >= 3 * BLOCK
    assert bool(stored) is (lag == 0)
    engine.scheduler.shutdown()
