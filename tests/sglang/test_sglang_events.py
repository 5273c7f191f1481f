"""SGLang's KV cache events with those of pagetier's tiers, and what is known of sessions."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from disk_daemon import DiskDaemon
from event_subscriber import EventSubscriber
from eventually import eventually
from running_daemon import RunningDaemon
from sglang_engine import SglangEngine
from sglang_model import Salted, Spec, prompt, whole

pytest_plugins = ("sglang_daemon",)
SPEC = Spec("mha", 16, ranks=2)
PAGES = 8
_BATCH = tuple[float, list[dict[str, Any]], int]


class Router:
    """Believes what the first rank of an engine announces."""

    def __init__(self, engine: SglangEngine) -> None:
        self._engine = engine
        self.blocks: dict[str, dict[int, dict[str, Any]]] = {"GPU": {}, "CPU_PINNED": {}, "DISK": {}}

    def hear(self) -> None:
        """Takes the events of one step. Only the first rank publishes."""
        self._engine.poll()
        self._believe(self._engine.events()[0])

    def _believe(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            match event["type"]:
                case "AllBlocksCleared":
                    for known in self.blocks.values():
                        known.clear()
                case "BlockRemoved":
                    for block in event["block_hashes"]:
                        del self.blocks[event["medium"]][block]  # removed what was not announced, or twice
                case _:
                    self._store(event)

    def believes(self, **pages: int) -> bool:
        """Waits until so many pages are announced in each tier."""

        def heard() -> bool:
            self.hear()
            return all(len(self.blocks[medium]) == count for medium, count in pages.items())

        return eventually(heard)

    def tokens(self, medium: str) -> list[int]:
        """Returns the tokens of all pages in a tier."""
        return [token for block in self.blocks[medium].values() for token in block["tokens"]]

    def _store(self, event: dict[str, Any]) -> None:
        parent, size = event["parent_block_hash"], event["block_size"]
        for at, block in enumerate(event["block_hashes"]):
            tokens = event["token_ids"][at * size : (at + 1) * size]
            assert block not in self.blocks[event["medium"]], "stored twice"
            self.blocks[event["medium"]][block] = {"parent": parent, "tokens": tokens}
            parent = block


class Subscriber(Router):
    """Believes what SGLang's publisher sends, and lets the engine do no step."""

    def __init__(self, engine: SglangEngine, subscriber: EventSubscriber) -> None:
        super().__init__(engine)
        self._subscriber = subscriber

    def hear(self) -> None:
        """Takes what was published."""
        for batch in self._subscriber.hear():
            self._believe(msgspec.msgpack.decode(batch, type=_BATCH)[1])


@pytest.mark.parametrize("kind", ["mha", "swa"])
def test_an_engine_that_does_no_step_announces_stores_moves_and_removals(
    kind: str, own_daemon: DiskDaemon, tmp_path: Path
) -> None:
    """SGLang asks for events when it is idle, but neither when it is paused nor while requests only wait."""
    endpoint = f"ipc://{tmp_path}/events"
    with (
        zmq.Context() as context,
        SglangEngine(Spec(kind, 16, ranks=2), own_daemon.socket, publish=endpoint) as engine,
        closing(EventSubscriber(endpoint, f"{endpoint}-replay", context)) as subscriber,
    ):
        router = Subscriber(engine, subscriber)
        engine.insert(1, PAGES)
        assert router.believes(GPU=PAGES, CPU_PINNED=PAGES, DISK=0), router.blocks
        own_daemon.save()
        assert router.believes(GPU=PAGES, CPU_PINNED=PAGES, DISK=PAGES), router.blocks
        own_daemon.flush("memory")
        assert router.believes(GPU=PAGES, CPU_PINNED=0, DISK=PAGES), router.blocks
        engine.insert(2, PAGES)
        own_daemon.save()  # a page that is being written is not flushed
        assert router.believes(GPU=2 * PAGES, CPU_PINNED=PAGES, DISK=2 * PAGES), router.blocks
        own_daemon.flush()
        assert router.believes(GPU=2 * PAGES, CPU_PINNED=0, DISK=0), router.blocks
        assert subscriber.replayed() == subscriber.batches


@pytest.mark.parametrize("kind", ["mha", "swa"])
def test_pages_are_announced_as_sglang_announces_its_blocks(own_daemon: DiskDaemon, kind: str) -> None:
    with SglangEngine(Spec(kind, 16, ranks=2), own_daemon.socket, publish="") as engine:
        router = Router(engine)
        engine.insert(1, PAGES)
        assert router.believes(GPU=PAGES, CPU_PINNED=PAGES, DISK=0), router.blocks
        own_daemon.save()
        assert router.believes(GPU=PAGES, CPU_PINNED=PAGES, DISK=PAGES), router.blocks
        assert router.blocks["CPU_PINNED"] == router.blocks["GPU"] == router.blocks["DISK"]
        assert router.tokens("DISK") == prompt(1, PAGES * 16).tolist()
        own_daemon.flush("memory")
        assert router.believes(GPU=PAGES, CPU_PINNED=0, DISK=PAGES), router.blocks
        engine.reset()
        assert router.believes(GPU=0, CPU_PINNED=0, DISK=PAGES), "all again, since SGLang said that all are gone"
        own_daemon.flush("disk")
        assert router.believes(GPU=0, CPU_PINNED=0, DISK=0), router.blocks


def test_pages_of_others_are_announced_when_they_are_used(daemon: DiskDaemon) -> None:
    with SglangEngine(SPEC, daemon.socket) as engine:
        engine.insert(1, PAGES)
    with SglangEngine(SPEC, daemon.socket, publish="") as engine:
        router = Router(engine)
        assert engine.restore(1, PAGES) == whole(SPEC, PAGES)
        engine.insert(1, PAGES)  # as SGLang does after the model has computed the rest
        assert router.believes(GPU=PAGES, CPU_PINNED=PAGES), router.blocks


def test_pages_with_a_salt_are_not_announced(daemon: DiskDaemon) -> None:
    with SglangEngine(SPEC, daemon.socket, publish="") as engine:
        router = Router(engine)
        for number in (Salted(1, extra_key="a"), Salted(1, cache_salt="a"), Salted(2)):
            assert engine.insert(number, PAGES) == [1, 1]
        assert router.believes(GPU=3 * PAGES, CPU_PINNED=PAGES), router.blocks
        assert router.tokens("CPU_PINNED") == prompt(2, PAGES * 16).tolist()


def test_an_engine_that_finds_none_of_its_pages_announces_none(daemon: DiskDaemon) -> None:
    with SglangEngine(SPEC, daemon.socket, publish="", flush="renew") as engine:
        router = Router(engine)
        engine.insert(1, PAGES)
        assert router.believes(CPU_PINNED=PAGES)
        engine.reset()
        assert router.believes(GPU=0, CPU_PINNED=0)
        engine.insert(2, 2)
        assert router.believes(GPU=2, CPU_PINNED=2), router.blocks


def test_pages_without_a_daemon_are_withdrawn_after_their_lease() -> None:
    with (
        RunningDaemon("64MiB", "4KiB") as daemon,
        SglangEngine(SPEC, daemon.socket, publish="", events_lease=1.0) as engine,
    ):
        router = Router(engine)
        engine.insert(1, PAGES)
        assert router.believes(CPU_PINNED=PAGES)
        daemon.kill()
        assert router.believes(GPU=PAGES, CPU_PINNED=0), router.blocks
        daemon.start()
        assert router.believes(GPU=PAGES, CPU_PINNED=PAGES), router.blocks


_KEEP: dict[str, Any] = {"retain": {"ttl": 300}}
_WRONG: dict[str, Any] = {"pagetier": {"keep": -1}}


def test_what_is_known_of_sessions_reaches_the_daemon() -> None:
    with DiskDaemon(1024, "256MiB") as daemon, SglangEngine(SPEC, daemon.socket) as engine:

        def hinted() -> tuple[int, int]:
            hints = daemon.snapshot().hints
            return hints.pages, hints.kept_bytes

        def is_hinted_by(*arguments: Any) -> bool:
            """Releases a request and returns whether a hint of all of its pages arrives."""
            before = hinted()[0]
            engine.finish_request(*arguments)
            engine.poll()
            if len(arguments) == 5:
                engine.close_session(arguments[4])
            return eventually(lambda: hinted()[0] >= before + PAGES)

        engine.insert(1, PAGES)
        for reason, said in (("", {}), ("FINISH_ABORT", {}), ("FINISH_ABORT", _WRONG)):
            engine.finish_request(1, PAGES, reason, said)
        assert engine.log.count("ignoring the hints of request request-1") == 1, "only the first rank reads them"
        assert hinted() == (0, 0)
        engine.finish_request(1, PAGES, "FINISH_ABORT", _KEEP)
        assert eventually(lambda: hinted()[1] > 0), engine.log
        assert hinted()[0] == PAGES, "a hint of the requests before it would have come first"
        assert is_hinted_by(1, PAGES, "FINISH_LENGTH", {}), engine.log
        assert is_hinted_by(1, PAGES, "FINISH_MATCHED_STR", {}), engine.log
        assert is_hinted_by(1, PAGES, "FINISH_ABORT", {}, "conversation"), engine.log


def test_hints_of_pairs_of_tokens_reach_their_pages() -> None:
    with (
        DiskDaemon(1024, "256MiB") as daemon,
        SglangEngine(Spec("mha", 16, draft="side"), daemon.socket) as engine,
    ):
        assert engine.insert(1, PAGES) == [1]
        engine.finish_request(1, PAGES, "FINISH_ABORT", _KEEP)
        assert eventually(lambda: daemon.snapshot().hints.pages), engine.log
        hints = daemon.snapshot().hints
        assert hints.kept_bytes > 0, "a page that does not exist is counted, and not kept"
