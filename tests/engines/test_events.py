"""Subscribes to vLLM's KV cache events: each page of pagetier is announced once it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq

from eventually import eventually
from one_host import PAGE_TOKENS, Scene, ask, prompt, scene_of
from vllm_engine import VllmEngine

PROMPT = prompt(1)
PAGE = PAGE_TOKENS["llama"]
_HEARD_S = 20.0


class Listener:
    """Subscribes to an engine's events, as a router does."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self.heard: list[dict[str, Any]] = []

    def hears(self, medium: str, count: int) -> bool:
        """Waits for `count` stored blocks of a medium."""

        def heard() -> bool:
            if len(self.stored(medium)) < count and self._socket.poll(100):
                _, _, batch = self._socket.recv_multipart()
                self.heard += msgspec.msgpack.decode(batch)[1]
            return len(self.stored(medium)) >= count

        return eventually(heard, _HEARD_S) and len(self.stored(medium)) == count

    def stored(self, medium: str) -> dict[bytes, dict[str, Any]]:
        """Returns the events of stored blocks by hash."""
        events = [event for event in self.heard if event["type"] == "BlockStored" and event["medium"] == medium]
        return {block: event | {"at": at} for event in events for at, block in enumerate(event["block_hashes"])}


@contextmanager
def listening(endpoint: str) -> Iterator[Listener]:
    """Yields a listener that is connected: what an engine publishes before is lost."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        with socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED) as connected:
            socket.connect(endpoint)
            socket.subscribe(b"")
            assert connected.poll(_HEARD_S * 1000), "the engine publishes no events"
        socket.disable_monitor()
        yield Listener(socket)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, VllmEngine, Listener]]:
    endpoint = f"ipc://{tmp_path_factory.mktemp('events')}/events"
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    with (
        scene_of("llama") as scene,
        scene.engine(engine={"kv_events_config": events}) as engine,
        listening(endpoint) as listener,
    ):
        yield scene, engine, listener


def test_every_stored_page_is_announced_as_vllm_announces_its_blocks(host: tuple[Scene, VllmEngine, Listener]) -> None:
    scene, engine, listener = host
    pages = scene.hit() // PAGE
    ask(engine, PROMPT)
    scene.settle()
    ask(engine, prompt(2, 64))  # pages stored by then are announced at the end of a step
    assert listener.hears("CPU", pages), listener.heard
    ours, parent = listener.stored("CPU"), None
    assert ours.keys() <= listener.stored("GPU").keys()
    for page, (block, event) in enumerate(ours.items()):
        assert event["token_ids"] == PROMPT[page * PAGE : (page + 1) * PAGE]
        assert (event["block_size"], event["parent_block_hash"]) == (PAGE, parent)
        parent = block
        assert _of_group(event) == _of_group(listener.stored("GPU")[block])
        assert event.get("kv_cache_spec_kind") == "full_attention" and event.get("locality") == "LOCAL"
    assert engine.do("metrics")["vllm:pagetier_stored_pages"] == pages


def test_a_salted_page_is_announced_with_its_salt(host: tuple[Scene, VllmEngine, Listener]) -> None:
    scene, engine, listener = host
    salted, before = prompt(6, 3 * PAGE + 1), len(listener.stored("CPU"))
    engine.do("generate", prompts=[salted], salt="tenant")
    scene.settle()
    ask(engine, prompt(7, 64))
    assert listener.hears("CPU", before + 3), listener.heard
    ours = list(listener.stored("CPU").values())[before:]
    assert [event.get("extra_keys") for event in ours] == [[["tenant"]], None, None]
    theirs = [listener.stored("GPU")[event["block_hashes"][0]] for event in ours]
    assert [event["extra_keys"][event["at"]] for event in theirs] == [["tenant"], None, None]


def _of_group(event: dict[str, Any]) -> list[Any]:
    return [event.get(name) for name in ("group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window")]


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
