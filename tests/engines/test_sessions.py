"""Tests streaming input sessions: requests that get more tokens after their answer, whose last token vLLM drops."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from harnessed_scheduler import BLOCK, HarnessedEngine
from pagetier.client import Client
from pagetier.shm._core import KEY_BYTES
from running_daemon import RunningDaemon

PROMPT: Final = [*range(2 * BLOCK - 3)]
ANSWER: Final = [0, 0, 0]  # with it the prompt fills two blocks


def _chunk(engine: HarnessedEngine, tokens: list[int]) -> Any:
    request = engine.request_of("session", tokens, answer=3)
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
