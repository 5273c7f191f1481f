"""Announces pages of a real daemon, without an engine, while daemons, disks and caches come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import zmq
from vllm.distributed.kv_events import EventBatch, ZmqEventPublisher
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.kv_cache_interface import SlidingWindowSpec

from announcing_host import PAGE, PAGES, SPEC, Host, written
from disk_daemon import FRAME, DiskDaemon
from eventually import PATIENCE_S, eventually
from pagetier.client.engines.vllm.events import fields_of_group
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.groups import FullAttention
from pagetier.shm._core import KEY_BYTES, EventsResult
from pagetier.shm.geometry import Geometry
from running_daemon import namespace

_STEPS = 3000


@pytest.fixture
def host() -> Iterator[Host]:
    with DiskDaemon(32, "64MiB") as daemon, daemon.client() as client:
        daemon.wait_open()
        assert client.wait_attached(PATIENCE_S)
        yield Host(daemon, client)


def test_pages_of_others_are_announced_in_one_event(host: Host) -> None:
    host.store(hashes := host.learn())
    host.renew()
    host.learn()
    events: list[Any] = []
    assert eventually(lambda: sum(len(event.block_hashes) for event in host.collects(events)) == PAGES)
    (event,) = events
    assert event.block_hashes == [maybe_convert_block_hash(one) for one in hashes] and event.parent_block_hash is None
    assert event.token_ids == list(range(PAGES * PAGE)) and event.block_size == PAGE
    assert event.kv_cache_spec_kind == "full_attention" and event.locality == "LOCAL"


def test_a_daemon_that_is_killed_leaves_no_gap(host: Host) -> None:
    written(host)
    host.daemon.kill()
    host.tells()
    host.daemon.open()
    assert eventually(lambda: host.client.attached)
    assert host.believes(PAGES, PAGES)
    assert host.removals == 0


def test_a_daemon_that_stays_away_ends_the_lease(host: Host) -> None:
    host.lease = 0.3
    host.renew()
    written(host)
    host.daemon.kill()
    assert host.believes(0, 0)
    host.daemon.open()
    assert host.believes(PAGES, PAGES)


def test_a_disk_worker_that_is_replaced_leaves_no_gap(host: Host) -> None:
    written(host)
    restarts = host.daemon.report().restarts
    host.daemon.kill_worker()
    host.daemon.wait_open(restarts + 1)
    host.store(host.learn(1))
    assert not host.daemon.save().trouble
    assert host.believes(2 * PAGES, 2 * PAGES) and host.removals == 0


def test_a_disk_that_stays_away_ends_the_lease(host: Host) -> None:
    host.lease = 0.3
    host.renew()
    written(host)
    with host.daemon.away():
        assert host.believes(PAGES, 0)


def test_after_a_reset_of_the_prefix_cache_all_pages_are_announced_again(host: Host) -> None:
    written(host)
    host.pool.cached_block_hash_to_block = {}
    host.believed = {"CPU": set(), "STORAGE": set()}  # AllBlocksCleared
    assert host.believes(PAGES, PAGES)
    host.events.clear()
    assert host.believes(0, 0)


def test_what_exceeds_the_bound_is_not_announced(host: Host) -> None:
    host.renew(most_pages=PAGES)
    host.store(host.learn(0))
    assert host.believes(PAGES, 0)
    host.store(host.learn(1))
    host.tells()
    assert host.believes(PAGES, 0)


def test_a_lost_ring_is_made_up_for(host: Host) -> None:
    written(host)
    ring = Geometry.of(host.daemon.header()).events_bytes // (KEY_BYTES + 8)
    hashes = host.learn()
    keys, page = host.group.keys(hashes), np.zeros(FRAME, np.uint8)
    for _ in range(ring // PAGES + 1):  # a page that is being written to disk is not flushed, and not stored again
        host.client.flush(host.group.namespace, 10.0)
        host.client.store(keys, [page] * PAGES, timeout=PATIENCE_S)
    assert host.changes._session is not None
    assert host.changes._session.read_events().result == EventsResult.MISSED
    host.changes._pages.sweep()
    assert eventually(lambda: host.client.flush(host.group.namespace, 10.0))
    assert host.believes(0, 0)


class LlmdStored(msgspec.Struct, tag="BlockStored"):
    """What llm-d's decoder requires of a stored block, and the types that it accepts."""

    block_hashes: list[int]
    token_ids: list[int]
    block_size: int
    parent_block_hash: int | None = None
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class LlmdRemoved(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None = None
    group_idx: int | None = None


class SglangStored(msgspec.Struct, tag="BlockStored"):
    """The same for SGLang's router, whose own messages have these fields always."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class SglangRemoved(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None


@pytest.mark.parametrize(
    "schema", [LlmdStored | LlmdRemoved, SglangStored | SglangRemoved], ids=["llm-d", "SGLang's router"]
)
def test_routers_decode_what_is_announced(host: Host, schema: Any) -> None:
    """The media are words of vLLM: SGLang's router and Dynamo take an unknown one for a GPU."""
    written(host)
    host.events.clear()
    removed = host.tells()
    host.renew()
    host.learn()
    stored: list[Any] = []
    assert eventually(lambda: bool(host.collects(stored)))
    batch = msgspec.msgpack.encode(EventBatch(0.0, [*stored, *removed], 0))
    _, decoded, rank = msgspec.msgpack.decode(batch, type=tuple[float, list[schema], int])
    assert rank == 0 and {event.medium for event in decoded} == {"CPU", "STORAGE"}
    of_stored = [event for event in decoded if hasattr(event, "token_ids")]
    assert all(event.block_size * len(event.block_hashes) == len(event.token_ids) for event in of_stored)
    assert all(0 <= block < 1 << 64 for event in decoded for block in event.block_hashes)


def test_a_resized_disk_leaves_no_gap(host: Host) -> None:
    written(host)
    assert host.daemon.pagetier("resize", "--disk-size", "48MiB", "--yes").exit_code == 0
    host.daemon.wait_open()
    assert host.believes(PAGES, PAGES) and host.removals == 0
    assert host.client.flush(host.group.namespace, 10.0)
    assert host.believes(0, 0, 10.0), "pages stay announced until the lease ends"


def test_pages_that_left_the_full_disk_during_an_overrun_are_removed(host: Host) -> None:
    """Others overwrite the ring and fill the disk, while this engine does no step."""
    written(host)
    ring = Geometry.of(host.daemon.header()).events_bytes // (KEY_BYTES + 8)
    others = PagedGroup(FullAttention(PAGE), namespace(PAGE, salt="others"), 1, True)
    page, stored = np.zeros(FRAME, np.uint8), 0
    while host.daemon.header().disk_evicted < ring // 3 or any(host.located()):
        keys = others.keys([(stored + at).to_bytes(KEY_BYTES, "little") for at in range(8)])
        stored += host.client.store(keys, [page] * len(keys), timeout=PATIENCE_S).stored
    assert host.believes(0, 0)


def test_a_subscriber_that_hangs_delays_no_step(host: Host, tmp_path: Path) -> None:
    """vLLM's publisher drops batches for it: a step that had to wait for it would never end."""
    written(host)
    endpoint = f"ipc://{tmp_path}/events"
    publisher = ZmqEventPublisher(0, endpoint, hwm=10, max_queue_size=10, buffer_steps=1)

    def step() -> None:
        host.pool.cached_block_hash_to_block = {}  # after a reset all pages are announced again
        publisher.publish(EventBatch(0.0, host.events.taken()))

    with zmq.Context() as context, context.socket(zmq.SUB) as hanging:
        hanging.setsockopt(zmq.RCVHWM, 1)
        hanging.setsockopt(zmq.LINGER, 0)
        hanging.connect(endpoint)
        hanging.subscribe(b"")
        while not hanging.poll(20):
            step()
        for _ in range(_STEPS):
            step()
        assert eventually(publisher._event_queue.empty)
        heard = 0
        while hanging.poll(200):
            hanging.recv_multipart()
            heard += 1
        assert heard < _STEPS, "the subscriber did not hang"
    publisher.shutdown()


def test_groups_are_described_as_vllm_describes_them() -> None:
    assert fields_of_group(SPEC) == {"kv_cache_spec_kind": "full_attention", "kv_cache_spec_sliding_window": None}
    window = SlidingWindowSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32, sliding_window=48)
    assert fields_of_group(window) == {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 48}
