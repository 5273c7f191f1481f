"""Tests what the scheduler's half returns, and when it sends requests to the daemon."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from pagetier.client import Client, Keys
from pagetier.client.engines.vllm import scheduler as scheduler_module
from pagetier.client.engines.vllm.request_state import PagedGroup
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.group_match import GroupKeys, GroupMatch, Lookup
from pagetier.client.groups import FullAttention, SlidingWindow
from running_daemon import RunningDaemon, eventually, namespace

PAGE = 4


class Clock:
    now = 50.0

    def monotonic(self) -> float:
        return self.now


class Directory:
    """A fake client that finds what the test configures, and counts calls.

    Attributes:
        here: Tokens in memory.
        available_tokens: Tokens in memory and on disk.
    """

    def __init__(self) -> None:
        self.here = self.available_tokens = 0
        self.matches = self.prefetches = self.pinned = 0
        self.answered = False
        self.takes = threading.Event()
        self.takes.set()
        self.limits: list[int | None] = []
        self.counted: list[Lookup] = []

    def find_groups(self, groups: list[GroupKeys], limit: int | None = None) -> Any:
        self.matches += 1
        self.limits.append(limit)
        self.pinned += 1
        most = limit if limit is not None else 1 << 30
        return Found(self, min(self.here, most), min(self.available_tokens, most))

    def count_lookup(self, lookup: Lookup) -> None:
        self.counted.append(lookup)

    def prefetch_groups(self, match: Any, timeout: float) -> Any:
        assert self.takes.wait(30)
        self.timeout = timeout
        self.prefetches += 1
        directory = self

        class Prefetch:
            @property
            def ready(self) -> bool:
                return directory.answered

        return Prefetch()


class Found:
    def __init__(self, directory: Directory, tokens: int, reach: int) -> None:
        self.directory, self.tokens, self.available_tokens, self.pinned = directory, tokens, reach, True
        self.matches: tuple[Any, ...] = ()
        self.start_pages: tuple[int, ...] = ()
        self.lookup = Lookup(tokens // PAGE, 10 - tokens // PAGE, tokens, 0, 10 * PAGE - tokens)

    def release(self) -> None:
        self.directory.pinned -= self.pinned
        self.pinned = False

    def __enter__(self) -> Found:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with mock.patch.object(scheduler_module, "time", clock):
        yield clock


def request(tokens: int = 41, name: str = "one") -> Any:
    hashes = [sha256(bytes([at])).digest() for at in range(tokens // PAGE)]
    return SimpleNamespace(
        request_id=name, num_tokens=tokens, num_computed_tokens=0, block_hashes=hashes, is_finished=lambda: False
    )


def half_of(directory: Any, timeout: float = 2.0) -> SchedulerHalf:
    kind = FullAttention(PAGE)
    return SchedulerHalf(directory, [PagedGroup(kind, namespace(PAGE), 1, True)], timeout)


def nothing_scheduled() -> Any:
    cached = SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set())
    return SimpleNamespace(
        scheduled_new_reqs=[], scheduled_cached_reqs=cached, num_scheduled_tokens={}, scheduled_spec_decode_tokens={}
    )


def test_matched_returns_the_tokens_beyond_the_engines_own(clock: Clock) -> None:
    directory = Directory()
    directory.here = directory.available_tokens = 24
    half = half_of(directory)
    assert half.matched(request(), 8) == 16
    assert half.matched(request(name="two"), 32) == 0
    assert half.matched(request(24, "three"), 0) == 23, "the last token must be computed"


def test_a_repeated_match_uses_the_pinned_pages(clock: Clock) -> None:
    directory = Directory()
    directory.here = directory.available_tokens = 24
    half, one = half_of(directory), request()
    for _ in range(1000):
        assert half.matched(one, 0) == 24
    assert directory.matches == 1
    clock.now += 2.5
    assert half.matched(one, 0) == 24
    assert directory.matches == 2 and directory.pinned == 1


def test_pages_of_other_hashes_are_not_offered(clock: Clock) -> None:
    """A session that is continued after another token has other hashes than those that were matched."""
    directory = Directory()
    directory.here = directory.available_tokens = 24
    half, one = half_of(directory), request()
    assert half.matched(one, 0) == 24
    one.block_hashes = [*one.block_hashes[:4], *request(41, "other").block_hashes[:6]]
    directory.here = directory.available_tokens = 16
    assert half.matched(one, 0) == 16
    assert directory.pinned == 1


def test_a_request_waits_for_pages_on_disk(clock: Clock) -> None:
    directory = Directory()
    directory.here, directory.available_tokens = 8, 24
    half, one = half_of(directory), request()
    for _ in range(1000):
        assert half.matched(one, 0) is None
    assert eventually(lambda: directory.prefetches == 1)
    assert (directory.matches, directory.pinned) == (1, 0)
    directory.here, directory.answered = 24, True
    assert eventually(lambda: half.matched(one, 0) == 24)
    assert half.from_memory(one, 24) == 8
    assert half.from_memory(one, 20) == 4


def test_a_request_does_not_wait_longer_than_the_deadline(clock: Clock) -> None:
    directory = Directory()
    directory.here, directory.available_tokens = 8, 24
    half, one = half_of(directory), request()
    assert half.matched(one, 0) is None
    clock.now += 1.9
    assert half.matched(one, 0) is None
    clock.now += 0.2
    assert half.matched(one, 0) == 8
    assert eventually(lambda: directory.prefetches == 1)


def test_a_hanging_daemon_blocks_the_prefetch_thread_but_not_the_scheduler(clock: Clock) -> None:
    """A daemon that hung accepted no requests, and each lookup blocked the scheduler for a second."""
    directory = Directory()
    directory.here, directory.available_tokens = 8, 24
    directory.takes.clear()
    half, one = half_of(directory), request()
    assert half.matched(one, 0) is None
    clock.now += 2.1
    assert half.matched(one, 0) == 8
    assert half.matched(request(name="two"), 0) is None
    assert not directory.prefetches
    half._prefetches.close()
    directory.takes.set()
    assert eventually(lambda: directory.prefetches == 1), "the first prefetch was not sent"


def test_with_a_deadline_of_zero_no_request_waits(clock: Clock) -> None:
    """The disk is still asked, for the next request."""
    directory = Directory()
    directory.here, directory.available_tokens = 8, 24
    half = half_of(directory, 0.0)
    assert half.matched(request(), 0) == 8
    assert eventually(lambda: directory.prefetches == 1)
    assert directory.timeout > 0


def test_tokens_in_the_engines_own_cache_are_not_prefetched(clock: Clock) -> None:
    directory = Directory()
    directory.here, directory.available_tokens = 8, 24
    half = half_of(directory)
    assert half.matched(request(), 24) == 0
    assert not directory.prefetches


def test_pins_of_waiting_requests_are_released(clock: Clock) -> None:
    directory = Directory()
    directory.here = directory.available_tokens = 24
    half = half_of(directory)
    half.matched(request(), 0)
    half.build(nothing_scheduled())
    assert directory.pinned == 1
    clock.now += 2.5
    half.build(nothing_scheduled())
    assert directory.pinned == 0


def test_a_load_is_not_offered_after_two_failures(clock: Clock) -> None:
    directory = Directory()
    directory.here = directory.available_tokens = 24
    half, one = half_of(directory), request()
    offered = []
    for _ in range(5):
        offered.append(half.matched(one, 0))
        half.allocated(one, [], offered[-1] or 0)
        half.failed(["one", "unknown"], frozenset())
        half.loaded(["one", "unknown"])
    assert offered[0] == 24 and offered[-1] == 0 and len(set(offered)) == 2
    assert directory.pinned == 0


def test_pages_stay_pinned_until_they_are_loaded(clock: Clock) -> None:
    directory = Directory()
    directory.here = directory.available_tokens = 24
    half, one = half_of(directory), request()
    half.allocated(one, [], half.matched(one, 0) or 0)
    clock.now += 100
    half.build(nothing_scheduled())
    half.finished(one, [[]])
    assert directory.pinned == 1
    half.loaded(["one"])
    assert directory.pinned == 0


def test_a_reset_hides_stored_pages() -> None:
    """This includes requests that wait."""
    groups = [
        PagedGroup(kind, namespace(PAGE, group=repr(kind)), 1, True)
        for kind in (FullAttention(PAGE), SlidingWindow(PAGE, 5))
    ]
    with RunningDaemon("1MiB", "4KiB") as daemon, daemon.client() as client:
        half = SchedulerHalf(client, groups, 0.0)
        for group in groups:
            keys = group.keys(request().block_hashes)
            client.store(keys, [b"x"] * len(keys))
        old = request(name="old")
        assert half.matched(old, 0) == 40
        half.renew()
        assert half.matched(old, 0) == 0
        assert half.matched(request(name="new"), 0) == 0
        half.close()


@pytest.mark.parametrize("loads", ["before", "during"])
def test_a_request_loaded_before_a_reset_is_not_stored(loads: str) -> None:
    """A request that was scheduled after the reset was treated as a new one."""
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)]
    with RunningDaemon("1MiB", "4KiB") as daemon, daemon.client() as client:
        half, one = SchedulerHalf(client, groups, 0.0), request()
        keys = groups[0].keys(one.block_hashes[:2])
        client.store(keys, [b"x"] * len(keys))
        half.allocated(one, [[]], half.matched(one, 0) or 0)
        if loads == "before":
            half.loaded([one.request_id])
        half.renew()
        if loads == "during":
            half.loaded([one.request_id])
        half.allocated(one, [[]], 0)
        one.num_computed_tokens = 40
        assert not half.finished(one, [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
        assert not half.build(nothing_scheduled()).stores
        half.close()


def test_a_request_matched_again_after_a_reset_is_stored() -> None:
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)]
    with RunningDaemon("1MiB", "4KiB") as daemon, daemon.client() as client:
        half, one = SchedulerHalf(client, groups, 0.0), request()
        half.allocated(one, [[]], half.matched(one, 0) or 0)
        half.renew()
        assert half.matched(one, 0) == 0
        half.allocated(one, [[]], 0)
        one.num_computed_tokens = 40
        assert half.finished(one, [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
        (command,) = half.build(nothing_scheduled()).stores
        new, old = (group.keys(one.block_hashes[:1]).data for group in (*half._groups, *groups))
        assert command.keys[:32] == new != old
        assert command.salt == half._groups[0].namespace.salt != groups[0].namespace.salt
        assert command.salt not in repr(command), "the salt separates tenants"
        half.close()


def test_without_a_daemon_nothing_is_found() -> None:
    half = half_of(Client("/nowhere/pagetier.sock"))
    assert half.matched(request(), 0) == 0
    half.close()


def test_a_partly_accepted_load_has_no_pages(clock: Clock) -> None:
    """If vLLM takes fewer tokens than offered, no page is loaded into a block of another page."""
    with RunningDaemon("1MiB", "4KiB") as daemon, daemon.client() as client:
        half, one = half_of(client, 0.0), request()
        keys = half._groups[0].keys(one.block_hashes)
        client.store(keys, [b"x"] * len(keys))
        assert half.matched(one, 0) == 40
        blocks = [SimpleNamespace(block_id=at, is_null=False, block_hash=None) for at in range(1, 11)]
        half.allocated(one, [blocks], 20)
        (load,) = half.build(nothing_scheduled()).loads
        assert all(not len(group.pages) and group.blocks for group in load.groups)
        half.close()


def test_the_fake_match_has_the_attributes_of_the_real_one() -> None:
    """The fakes above have the attributes of the real classes that the half uses."""
    assert {"tokens", "available_tokens", "matches"} <= set(GroupMatch.__struct_fields__)
    assert hasattr(GroupMatch, "start_pages") and hasattr(GroupMatch, "release")


def store(half: SchedulerHalf, client: Client) -> Keys:
    """Stores pages of a prompt in the first group, under the keys that the half uses now."""
    (group, *_) = half._groups
    keys = group.keys(request().block_hashes)
    client.store(keys, [b"x"] * len(keys))
    return keys


def there(client: Client, keys: Keys) -> bool:
    with client.match(keys) as match:
        return len(match) > 0


def test_a_reset_flushes_private_namespaces() -> None:
    """Pages in shared namespaces stay. Each reset used to leave a namespace for each group."""
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)]
    with RunningDaemon("1MiB", "4KiB") as daemon, daemon.client() as client, daemon.client() as other:
        half = SchedulerHalf(client, groups, 0.0)
        shared = store(half, other)
        half.renew()
        first = store(half, other)
        half.renew()
        assert eventually(lambda: not there(other, first))
        assert there(other, shared)
        assert daemon.findings() == []
        half.close()


def test_a_reset_flushes_pages_of_unidentified_weights() -> None:
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE, salt="random"), 1, True)]
    with RunningDaemon("1MiB", "4KiB") as daemon, daemon.client() as client, daemon.client() as other:
        half = SchedulerHalf(client, groups, 0.0, private=[groups[0].namespace])
        keys = store(half, other)
        half.renew()
        assert eventually(lambda: not there(other, keys))
        half.close()


def test_pages_in_use_at_a_reset_are_flushed_at_the_next_one() -> None:
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)]
    with RunningDaemon("1MiB", "4KiB") as daemon, daemon.client() as client, daemon.client() as other:
        half = SchedulerHalf(client, groups, 0.0)
        half.renew()
        keys = store(half, other)
        with other.match(keys):
            half.renew()
            assert not other.flush(keys.namespace)
        half.renew()
        assert eventually(lambda: not there(other, keys))
        half.close()


def test_many_resets_do_not_fill_the_table_of_namespaces() -> None:
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)]
    small = RunningDaemon("1MiB", "4KiB", "--index-namespaces", "3")
    with small as daemon, daemon.client() as client, daemon.client() as other:
        half = SchedulerHalf(client, groups, 0.0)
        for _ in range(20):
            assert eventually(lambda: there(other, store(half, other))), "the pages are not stored"
            half.renew()
        half.close()


def test_a_reset_does_not_wait_for_the_daemon() -> None:
    """The daemon is stopped, or there is none."""
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)]
    with RunningDaemon("1MiB", "4KiB") as daemon, daemon.client() as client:
        half = SchedulerHalf(client, groups, 0.0)
        daemon.signal(signal.SIGSTOP)
        began = time.monotonic()
        for _ in range(50):
            half.renew()
        assert time.monotonic() - began < 0.5
        half.close()
        daemon.signal(signal.SIGCONT)
