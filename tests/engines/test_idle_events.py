"""Publishes events of an engine that does no step, without an engine: in order, once, and without a gap."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import EventBatch, EventPublisherFactory, KVEventBatch

from announcing_host import PAGES, Host, written
from disk_daemon import DiskDaemon
from event_subscriber import EventSubscriber
from eventually import PATIENCE_S, eventually, pace
from pagetier.client.engines.events.idle_publisher import IdlePublisher, use_next_publisher
from seeded_random import chance

_CHANGES = 60


@pytest.fixture
def host() -> Iterator[Host]:
    with DiskDaemon(32, "64MiB") as daemon, daemon.client() as client:
        daemon.wait_open()
        assert client.wait_attached(PATIENCE_S)
        yield Host(daemon, client)


def flush(host: Host) -> None:
    """Removes all pages from all tiers."""
    assert eventually(lambda: host.client.flush(host.group.namespace, 10.0))


def test_what_a_step_has_taken_is_published_first(host: Host) -> None:
    """Else routers hear that pages left, and then that they came."""
    host.store(host.learn())
    taken = eventually(host.events.taken)
    assert taken
    flush(host)
    published: list[Any] = []
    for _ in range(5):
        host.events.publish_idle(published.extend)
    assert not published
    host.hear(taken)
    host.events.published()
    assert eventually(lambda: host.events.publish_idle(published.extend) or published)
    host.hear(published)
    assert not host.believed["CPU"]


def test_the_thread_leaves_changes_to_an_engine_that_does_steps(host: Host) -> None:
    written(host)
    flush(host)
    host.tells()
    host.believed = {"CPU": set(), "STORAGE": set()}
    host.store(host.learn())
    published: list[Any] = []
    host.events.publish_idle(published.extend)
    assert not published, "a step came just before"
    assert eventually(lambda: host.events.publish_idle(published.extend) or published)


def test_events_that_cannot_be_published_are_kept(host: Host) -> None:
    written(host)
    flush(host)

    def fail(_: list[Any]) -> None:
        raise RuntimeError("Publisher is closed")

    def fails() -> bool:
        try:
            host.events.publish_idle(fail)
        except RuntimeError:
            return True
        return False

    assert eventually(fails)
    host.tells()
    assert not host.believed["CPU"]


def test_only_a_step_sees_a_reset_of_the_prefix_cache(host: Host) -> None:
    """Its batch begins with AllBlocksCleared: routers would forget what was announced again before."""
    written(host)
    host.pool.cached_block_hash_to_block = {}
    published: list[Any] = []
    for _ in range(5):
        host.events.publish_idle(published.extend)
    assert not published
    host.believed = {"CPU": set(), "STORAGE": set()}
    assert host.believes(PAGES, PAGES)


def test_the_step_that_publishes_a_reset_comes_first(host: Host) -> None:
    """Also if it announces nothing else: routers would forget what was announced between its two halves."""
    host.learn()
    host.pool.cached_block_hash_to_block = {}
    assert not host.events.taken()
    host.store(host.learn())
    published: list[Any] = []
    for _ in range(5):
        host.changes._pages.sweep()
        host.events.publish_idle(published.extend)
    assert not published
    host.events.published()
    assert eventually(lambda: host.events.publish_idle(published.extend) or published)


def _batch_of(events: list[Any]) -> KVEventBatch:
    return KVEventBatch(ts=0.0, events=events)


class Stream:
    """vLLM's publisher as its scheduler uses it, and a subscriber."""

    def __init__(self, host: Host, folder: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.host = host
        endpoint, replay = f"ipc://{folder}/events", f"ipc://{folder}/replay"
        self.idle = IdlePublisher(_batch_of, logging.getLogger(__name__))
        use_next_publisher(EventPublisherFactory, self.idle)
        self.publisher = EventPublisherFactory.create(
            KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint, replay_endpoint=replay)
        )
        self.subscriber = EventSubscriber(endpoint, replay, context)
        self.idle.start(host.events)

    def step(self) -> None:
        """Takes and publishes events as vLLM's scheduler does at the end of a step."""
        if events := self.host.events.taken():
            pace()
            self.publisher.publish(KVEventBatch(ts=0.0, events=events))

    def hear(self) -> None:
        """Believes all that was published."""
        for batch in self.subscriber.hear():
            self.host.hear(msgspec.msgpack.decode(batch, type=KVEventBatch).events)

    def believes(self, memory: int, disk: int) -> bool:
        """Waits until the router believes that so many pages are in memory and on disk, without a step."""

        def heard() -> bool:
            self.hear()
            return (len(self.host.believed["CPU"]), len(self.host.believed["STORAGE"])) == (memory, disk)

        return eventually(heard)


@contextmanager
def streaming(host: Host, folder: Path) -> Iterator[Stream]:
    with zmq.Context() as context:
        stream = Stream(host, folder, context)
        yield stream
        stream.publisher.shutdown()
        stream.subscriber.close()


def test_an_idle_engine_announces_stores_moves_and_removals(host: Host, tmp_path: Path) -> None:
    with streaming(host, tmp_path) as stream:
        host.store(host.learn())
        assert stream.believes(PAGES, 0)
        assert not host.daemon.save().trouble
        assert stream.believes(PAGES, PAGES)
        assert host.daemon.pagetier("flush", "--all", "--tier", "memory", "--yes").exit_code == 0
        assert stream.believes(0, PAGES)
        flush(host)
        assert stream.believes(0, 0)


def test_the_lease_ends_while_the_engine_is_idle(host: Host, tmp_path: Path) -> None:
    host.lease = 0.3
    host.renew()
    with streaming(host, tmp_path) as stream:
        host.store(host.learn())
        assert stream.believes(PAGES, 0)
        host.daemon.kill()
        assert stream.believes(0, 0)
        host.daemon.open()
        assert stream.believes(PAGES, 0)


def test_steps_and_the_thread_publish_in_order(host: Host, tmp_path: Path) -> None:
    """Pages come and go while steps begin and end at random; now and then the daemon is killed."""
    numbers, ended = chance(), threading.Event()
    with streaming(host, tmp_path) as stream:

        def steps() -> None:
            turns = chance()
            while not ended.is_set():
                stream.step()
                pace(float(turns.choice([0.001, 0.02, 0.3])))

        engine = threading.Thread(target=steps)
        engine.start()
        for change in range(_CHANGES):
            hashes = host.learn(change % 4)
            match int(numbers.integers(8)):
                case 0 | 1 | 2:
                    host.client.store(host.group.keys(hashes), [bytes(1 << 16)] * PAGES, timeout=PATIENCE_S)
                case 3 | 4:
                    host.client.flush(host.group.namespace, 10.0)
                case 5:
                    host.daemon.save()
                case 6 if change % 3 == 0:
                    host.daemon.kill()
                    host.daemon.open()
                    assert eventually(lambda: host.client.attached)
            stream.hear()
            pace(float(numbers.choice([0.0, 0.05, 0.3])))
        ended.set()
        engine.join()
        flush(host)
        assert stream.believes(0, 0)
        assert stream.subscriber.replayed() == stream.subscriber.batches


def test_the_factory_is_as_before_once_the_publisher_is_made() -> None:
    original = EventPublisherFactory.__dict__["create"]
    idle = IdlePublisher(_batch_of, logging.getLogger(__name__))
    use_next_publisher(EventPublisherFactory, idle)
    publisher = EventPublisherFactory.create(None)
    assert EventPublisherFactory.__dict__["create"] is original
    publisher.publish(EventBatch(0.0, []))
    publisher.shutdown()
