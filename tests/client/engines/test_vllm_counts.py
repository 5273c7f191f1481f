"""Tests that a request counts once in the daemon, in the connector and in vLLM, with equal numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from disk_daemon import DiskDaemon, write_through
from eventually import PATIENCE_S, eventually
from fake_vllm_client import PAGE, request
from lookup_counts import Counted, counted
from pagetier.client import Client, Keys
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.vllm.tier_reads import ReadLimits
from pagetier.client.groups import FullAttention
from running_daemon import namespace
from virtual_clock import VirtualClock

PAGES = 10


class Scene:
    """A scheduler's half, and the daemon in which it matches."""

    def __init__(self, daemon: DiskDaemon, client: Client, disk_timeout: float = PATIENCE_S) -> None:
        self.daemon, self.client = daemon, client
        self.group = PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)
        self.half = SchedulerHalf(client, [self.group], ReadLimits(disk_timeout))
        self.begin()

    def begin(self) -> None:
        """Starts counting for counted()."""
        self.before = counted(self.daemon)

    def counted(self) -> Counted:
        return counted(self.daemon).since(self.before)

    def sampled(self) -> int:
        """Returns the lookups that the daemon knows of; it reads all of them before it responds to a store."""
        self.client.store(self.keys()[:1], [b"x"])
        advice = json.loads(self.daemon.pagetier("advise", "--json").stdout)
        return int(advice["lookups"]) if advice else 0

    def keys(self) -> Keys:
        return self.group.keys(request().block_hashes)

    def load(self, one: Any, computed: int = 0) -> int:
        """Matches and allocates like vLLM, up to the load command. Returns the number of tokens to load."""
        assert eventually(lambda: self.half.matched(one, computed) is not None)
        offered = self.half.matched(one, computed)
        assert offered is not None
        self.half.allocated(one, blocks(), offered)
        return offered

    def start(self, one: Any) -> None:
        """Continues like vLLM after the load: allocates the other blocks, computes the request and ends it."""
        self.half.loaded([one.request_id])
        self.half.allocated(one, blocks(), 0)
        one.num_computed_tokens = one.num_tokens
        self.half.finished(one, [list(range(1, PAGES + 2))])


def blocks() -> list[list[Any]]:
    return [[SimpleNamespace(block_id=at, is_null=False, block_hash=None) for at in range(1, PAGES + 2)]]


@pytest.fixture(scope="module")
def daemon() -> Iterator[DiskDaemon]:
    with write_through() as running:
        yield running


@pytest.fixture
def scene(daemon: DiskDaemon, standing_clock: VirtualClock) -> Iterator[Scene]:
    """Of ten pages four are in memory, the next four only on disk, and two are not cached."""
    with daemon.client(timeout=PATIENCE_S) as client:
        there = Scene(daemon, client)
        daemon.drop_all_pages()
        keys = there.keys()[:8]
        assert client.store(keys, [b"x"] * 8).stored == 8
        daemon.push_out(client, keys)
        assert client.prefetch(keys[:4]).wait(PATIENCE_S) == 4
        there.begin()
        yield there
        there.half.close()


def test_repeated_matches_count_as_one_lookup(scene: Scene, standing_clock: VirtualClock) -> None:
    one, sampled = request(), scene.sampled()
    assert eventually(lambda: scene.half.matched(one, 0) == 32)
    for _ in range(3):
        standing_clock.passes(2.5)
        assert scene.half.matched(one, 0) == 32
    assert scene.counted() == Counted(0, 0, 0, 0), "counted before the request begins"
    assert scene.load(one) == 32
    scene.start(one)
    assert scene.counted() == Counted(1, 16, 16, 8)
    assert scene.half.counters.taken() == {"memory_tokens": 16, "disk_tokens": 16}
    assert scene.sampled() == sampled + 1


def test_pages_that_the_disk_reads_too_late_are_misses(scene: Scene, standing_clock: VirtualClock) -> None:
    one = request()
    with scene.daemon.stopped_worker():
        assert scene.half.matched(one, 0) is None
        standing_clock.passes(PATIENCE_S + 1)
        assert scene.load(one) == 16
        scene.start(one)
        assert scene.counted() == Counted(1, 16, 0, 24)


def test_tokens_in_vllms_own_cache_do_not_count(scene: Scene) -> None:
    one, other = request(), request(name="two")
    assert scene.load(one, computed=20) == 12
    scene.start(one)
    assert scene.counted() == Counted(1, 0, 12, 8)
    scene.begin()
    assert scene.load(other, computed=36) == 0
    scene.start(other)
    assert scene.counted() == Counted(1, 0, 0, 4)


def test_a_failed_load_is_not_a_hit(scene: Scene) -> None:
    one = request()
    assert scene.load(one) == 32
    scene.half.failed([one.request_id], frozenset())
    scene.half.loaded([one.request_id])
    assert scene.counted() == Counted(0, 0, 0, 0), "counted before the request is computed"
    assert scene.load(one) == 0
    scene.start(one)
    assert scene.counted() == Counted(1, 0, 0, 40)
    assert not scene.half.counters.taken()


def test_a_preempted_request_counts_once(scene: Scene) -> None:
    one = request()
    scene.load(one)
    scene.half.loaded([one.request_id])
    scene.half.allocated(one, blocks(), 0)
    assert scene.load(one) == 32
    scene.start(one)
    assert scene.counted() == Counted(1, 16, 16, 8)


def test_a_request_that_never_begins_is_not_counted(scene: Scene) -> None:
    one = request()
    assert eventually(lambda: scene.half.matched(one, 0) == 32)
    scene.half.finished(one, [[]])
    assert scene.counted() == Counted(0, 0, 0, 0)
