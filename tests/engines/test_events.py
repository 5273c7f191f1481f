"""Subscribes to vLLM's KV cache events: each page of pagetier is announced once it is stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest
import zmq

from event_subscriber import EventSubscriber
from eventually import eventually
from one_host import PAGE_TOKENS, Scene, ask, prompt, scene_of
from vllm_engine import VllmEngine

PROMPT = prompt(1)
PAGE = PAGE_TOKENS["llama"]


class Listener:
    """Subscribes to an engine's events, as a router does."""

    def __init__(self, subscriber: EventSubscriber) -> None:
        self.subscriber = subscriber
        self.heard: list[dict[str, Any]] = []

    def hears(self, medium: str, count: int) -> bool:
        """Waits for `count` stored blocks of a medium."""
        return self._hears(lambda: len(self.stored(medium)) >= count) and len(self.stored(medium)) == count

    def hears_removals(self, medium: str, blocks: Collection[bytes]) -> bool:
        """Waits until these blocks are removed from a medium."""
        return self._hears(lambda: self.removed(medium).issuperset(blocks))

    def _hears(self, enough: Callable[[], bool]) -> bool:
        def heard() -> bool:
            for batch in self.subscriber.hear():
                self.heard += msgspec.msgpack.decode(batch)[1]
            return enough()

        return eventually(heard)

    def removed(self, medium: str) -> set[bytes]:
        """Returns the removed blocks."""
        events = [event for event in self.heard if event["type"] == "BlockRemoved" and event["medium"] == medium]
        return {block for event in events for block in event["block_hashes"]}

    def stored(self, medium: str) -> dict[bytes, dict[str, Any]]:
        """Returns the events of stored blocks by hash."""
        events = [event for event in self.heard if event["type"] == "BlockStored" and event["medium"] == medium]
        return {block: event | {"at": at} for event in events for at, block in enumerate(event["block_hashes"])}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, VllmEngine, Listener]]:
    folder = tmp_path_factory.mktemp("events")
    endpoint, replay = f"ipc://{folder}/events", f"ipc://{folder}/replay"
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": replay,
    }
    with (
        scene_of("llama") as scene,
        scene.engine(engine={"kv_events_config": events}) as engine,
        zmq.Context() as context,
        closing(EventSubscriber(endpoint, replay, context)) as subscriber,
    ):
        yield scene, engine, Listener(subscriber)


def test_every_stored_page_is_announced_as_vllm_announces_its_blocks(host: tuple[Scene, VllmEngine, Listener]) -> None:
    scene, engine, listener = host
    pages = scene.hit() // PAGE
    ask(engine, PROMPT)
    scene.settle()
    assert listener.hears("CPU", pages), listener.heard
    ours, parent = listener.stored("CPU"), None
    assert ours.keys() <= listener.stored("GPU").keys()
    for page, (block, event) in enumerate(ours.items()):
        at = event["at"]
        assert event["token_ids"][at * PAGE : (at + 1) * PAGE] == PROMPT[page * PAGE : (page + 1) * PAGE]
        assert event["block_size"] == PAGE and (at or event["parent_block_hash"] == parent)
        parent = block
        assert _of_group(event) == _of_group(listener.stored("GPU")[block])
        assert event.get("kv_cache_spec_kind") == "full_attention" and event.get("locality") == "LOCAL"
    assert engine.do("metrics")["vllm:pagetier_stored_pages"] == pages


def test_a_salted_page_is_announced_with_its_salt(host: tuple[Scene, VllmEngine, Listener]) -> None:
    _, engine, listener = host
    salted, before = prompt(6, 3 * PAGE + 1), len(listener.stored("CPU"))
    engine.do("generate", prompts=[salted], salt="tenant")
    assert listener.hears("CPU", before + 3), listener.heard
    blocks = list(listener.stored("CPU"))[before:]
    ours, theirs = ([listener.stored(medium)[block] for block in blocks] for medium in ("CPU", "GPU"))
    assert [event["extra_keys"][event["at"]] for event in ours] == [["tenant"], None, None]
    assert [event["extra_keys"][event["at"]] for event in theirs] == [["tenant"], None, None]


def _of_group(event: dict[str, Any]) -> list[Any]:
    return [event.get(name) for name in ("group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window")]


def test_an_idle_engine_announces_what_it_can_no_longer_load(host: tuple[Scene, VllmEngine, Listener]) -> None:
    """There is one stream: numbers go on with the next request, and the replay has what was published between steps."""
    scene, engine, listener = host
    before = len(listener.stored("CPU"))
    ask(engine, prompt(8))
    scene.settle()
    assert listener.hears("CPU", before + scene.hit() // PAGE)
    blocks = listener.stored("CPU").keys()
    assert not blocks & listener.removed("CPU")
    assert scene.daemon.pagetier("flush", "--all", "--yes").exit_code == 0
    assert listener.hears_removals("CPU", blocks), listener.heard
    assert listener.removed("CPU") == blocks
    ask(engine, prompt(9))
    assert listener.hears("CPU", len(blocks) + scene.hit() // PAGE)
    numbers = [number for number, _ in listener.subscriber.batches]
    assert numbers == list(range(len(numbers)))
    assert listener.subscriber.replayed() == listener.subscriber.batches


def test_rejected_pages_are_not_announced(host: tuple[Scene, VllmEngine, Listener]) -> None:
    scene, engine, listener = host
    announced = listener.stored("CPU").keys()
    scene.daemon.kill()
    before = len(listener.stored("GPU"))
    ask(engine, prompt(3))
    assert eventually(lambda: not engine.attached), "a store does not wait for a daemon that is gone"
    ask(engine, prompt(4, 64))
    assert listener.hears("GPU", before + scene.hit() // PAGE)
    assert listener.stored("CPU").keys() == announced
    scene.daemon.open()
