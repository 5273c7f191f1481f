"""Tests what a reset of vLLM's prefix cache hides and flushes."""

from __future__ import annotations

import signal

import pytest

from eventually import eventually
from fake_vllm_client import PAGE, nothing_scheduled, request
from pagetier.client import Client, Keys
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.vllm.tier_reads import ReadLimits
from pagetier.client.groups import FullAttention, SlidingWindow
from rescued_wait import HOUR_S
from running_daemon import RunningDaemon, namespace

ARENA, ARENA_FRAME = "1MiB", "4KiB"

pytestmark = pytest.mark.usefixtures("empty_daemon")


def store(half: SchedulerHalf, client: Client) -> Keys:
    """Stores pages of a prompt in the first group, under the keys that the half uses now."""
    (group, *_) = half._groups
    keys = group.keys(request().block_hashes)
    client.store(keys, [b"x"] * len(keys))
    return keys


def there(client: Client, keys: Keys) -> bool:
    """Returns whether pages are found. It pins them for a moment, and so must not be asked while they are flushed."""
    with client.match(keys) as match:
        return len(match) > 0


def test_a_reset_hides_stored_pages(client: Client) -> None:
    """This includes requests that wait."""
    groups = [
        PagedGroup(kind, namespace(PAGE, group=repr(kind)), 1, True)
        for kind in (FullAttention(PAGE), SlidingWindow(PAGE, 5))
    ]
    half = SchedulerHalf(client, groups, ReadLimits(0.0))
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
def test_a_request_loaded_before_a_reset_is_not_stored(client: Client, loads: str) -> None:
    """A request that was scheduled after the reset was treated as a new one."""
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)]
    half, one = SchedulerHalf(client, groups, ReadLimits(0.0)), request()
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


def test_a_request_matched_again_after_a_reset_is_stored(client: Client) -> None:
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)]
    half, one = SchedulerHalf(client, groups, ReadLimits(0.0)), request()
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


def test_a_reset_flushes_private_namespaces(daemon: RunningDaemon, client: Client) -> None:
    """Pages in shared namespaces stay. Each reset used to leave a namespace for each group."""
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)]
    with daemon.client() as other:
        half = SchedulerHalf(client, groups, ReadLimits(0.0))
        shared = store(half, other)
        half.renew()
        first = store(half, other)
        half.renew()
        assert eventually(lambda: daemon.header().pages == len(shared))
        assert there(other, shared) and not there(other, first)
        assert daemon.findings() == []
        half.close()


def test_a_session_that_goes_on_after_a_reset_stores_nothing(client: Client) -> None:
    """Its keys change with the token that it drops, and had been planned again."""
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)]
    half, one = SchedulerHalf(client, groups, ReadLimits(0.0)), request()
    half.allocated(one, [[]], half.matched(one, 0) or 0)
    assert half._tracked["one"].keys
    half.renew()
    one.block_hashes[-1:] = [b"x" * 32, b"y" * 32]
    assert half._tracked["one"].keys and half._tracked["one"].is_excluded
    half.close()


def test_a_reset_flushes_pages_of_unidentified_weights(daemon: RunningDaemon, client: Client) -> None:
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE, salt="random"), 1, True)]
    with daemon.client() as other:
        half = SchedulerHalf(client, groups, ReadLimits(0.0), private=[groups[0].namespace])
        store(half, other)
        half.renew()
        assert eventually(lambda: not daemon.header().pages)
        half.close()


def test_pages_in_use_at_a_reset_are_flushed_at_the_next_one(daemon: RunningDaemon, client: Client) -> None:
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)]
    with daemon.client() as other:
        half = SchedulerHalf(client, groups, ReadLimits(0.0))
        half.renew()
        keys = store(half, other)
        with other.match(keys):
            half.renew()
            assert not other.flush(keys.namespace)
        half.renew()
        assert eventually(lambda: not daemon.header().pages)
        half.close()


def test_many_resets_do_not_fill_the_table_of_namespaces() -> None:
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)]
    small = RunningDaemon("1MiB", "4KiB", "--constant", "index.namespaces=3")
    with small as daemon, daemon.client() as client, daemon.client() as other:
        half = SchedulerHalf(client, groups, ReadLimits(0.0))
        for _ in range(20):
            assert eventually(lambda: there(other, store(half, other))), "the pages are not stored"
            half.renew()
        half.close()


def test_a_reset_does_not_wait_for_the_daemon() -> None:
    """The daemon is stopped, or there is none."""
    groups = [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)]
    with RunningDaemon("1MiB", "4KiB") as daemon, daemon.client(timeout=HOUR_S) as client:
        half = SchedulerHalf(client, groups, ReadLimits(0.0))
        daemon.signal(signal.SIGSTOP)
        for _ in range(50):
            half.renew()
        half.close()
        daemon.signal(signal.SIGCONT)
