"""Announces pages of engines whose ranks divide layers or tokens, with vLLM's real scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.config.kv_events import KVEventsConfig

from eventually import eventually
from harnessed_models import CONTEXT, PIPELINE, assert_nothing_is_left, engine_of
from harnessed_scheduler import BLOCK, BY_REQUEST, HarnessedEngine
from pagetier.client import Client
from running_daemon import RunningDaemon


class Router:
    """Believes what an engine publishes."""

    def __init__(self, engine: HarnessedEngine) -> None:
        self.blocks: dict[tuple[str, int], dict[bytes, tuple[Any, ...]]] = {}
        self._events = engine.half.events
        engine.connector._idle.stop()  # the test publishes in its place
        engine.scheduler.kv_event_publisher.publish = self._publish

    def _publish(self, batch: Any) -> None:
        self.hear(batch.events)
        self._events.published()

    def hear(self, events: list[Any]) -> None:
        for event in events:
            match type(event).__name__:
                case "BlockStored":
                    self._store(event)
                case "BlockRemoved":
                    for block in event.block_hashes:
                        del self._of(event)[block]  # removed what was not announced, or twice
                case _:
                    self.blocks.clear()

    def of(self, medium: str) -> dict[tuple[int, bytes], tuple[Any, ...]]:
        """Returns the blocks of a medium by group and hash, with their parents and tokens."""
        return {
            (group, block): content
            for (where, group), blocks in self.blocks.items()
            for block, content in blocks.items()
            if where == medium
        }

    def _of(self, event: Any) -> dict[bytes, tuple[Any, ...]]:
        return self.blocks.setdefault((event.medium, event.group_idx), {})

    def _store(self, event: Any) -> None:
        parent, size = event.parent_block_hash, event.block_size
        for at, block in enumerate(event.block_hashes):
            assert block not in self._of(event), "stored twice"
            self._of(event)[block] = (parent, tuple(event.token_ids[at * size : (at + 1) * size]))
            parent = block


def announcing(
    model: str, daemon: RunningDaemon, client: Client, monkeypatch: pytest.MonkeyPatch, parallel: dict[str, int]
) -> HarnessedEngine:
    """Returns an engine whose KV cache events are enabled."""
    import harnessed_scheduler

    configured = harnessed_scheduler._config

    def with_events(*arguments: Any) -> Any:
        config = configured(*arguments)
        config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        return config

    monkeypatch.setattr(harnessed_scheduler, "_config", with_events)
    page = BLOCK * parallel.get("decode_context_parallel_size", 1)
    return engine_of(model, daemon, client, parallel=parallel, hashed=page)


@pytest.mark.skipif(not BY_REQUEST, reason="tested from 0.30 on")
@pytest.mark.parametrize(("model", "parallel"), [("full", PIPELINE), ("window", PIPELINE), ("attention", CONTEXT)])
def test_a_page_is_announced_once_all_ranks_have_stored_their_shares(
    model: str,
    parallel: dict[str, int],
    daemon: RunningDaemon,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the form in which vLLM announces it: routers know nothing of shares."""
    engine = announcing(model, daemon, client, monkeypatch, parallel)
    router = Router(engine)

    def hears(pages: int) -> bool:
        """Waits until so many pages of full attention are announced, without a step."""

        def heard() -> bool:
            engine.half.events.publish_idle(router.hear)
            return sum(group == 0 for group, _ in router.of("CPU")) == pages

        return eventually(heard)

    request = engine.submit(1, 200, answer=1)
    page = BLOCK * parallel.get("decode_context_parallel_size", 1)
    own, others = engine.groups[: len(engine.groups) // 2], engine.groups[len(engine.groups) // 2 :]
    while engine.scheduler.requests:
        engine.step()
    for group in own:
        engine.store_group_elsewhere(request, group, 96)
    for _ in range(2):
        engine.half.events._changes._pages.sweep()
        engine.half.events.publish_idle(router.hear)
    assert not router.of("CPU")
    for group in others:
        engine.store_group_elsewhere(request, group, 96)
    assert hears(96 // page)
    ours, theirs = router.of("CPU"), router.of("GPU")
    assert ours.items() <= theirs.items()
    assert eventually(lambda: client.flush(others[0].namespace, 10.0))
    assert hears(0)
    engine.run()
    assert_nothing_is_left(engine, daemon)
