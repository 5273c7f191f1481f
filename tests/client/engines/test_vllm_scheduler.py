"""Tests what the scheduler's half returns, and when it sends requests to the daemon."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from eventually import PATIENCE_S, eventually
from fake_vllm_client import PAGE, FakeClient, nothing_scheduled, request
from pagetier.client import Client
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.request_state import LoadedTokens
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.vllm.tier_reads import ReadLimits
from pagetier.client.group_match import GroupMatch
from pagetier.client.groups import FullAttention
from running_daemon import RunningDaemon, namespace
from virtual_clock import VirtualClock


@pytest.fixture
def clock(standing_clock: VirtualClock) -> VirtualClock:
    """Returns the time of the scheduler."""
    return standing_clock


def half_of(fake: Any, timeout: float = 2.0) -> SchedulerHalf:
    kind = FullAttention(PAGE)
    return SchedulerHalf(fake, [PagedGroup(kind, namespace(PAGE), 1, True)], ReadLimits(timeout))


def test_matched_returns_the_tokens_beyond_the_engines_own(clock: VirtualClock) -> None:
    fake = FakeClient(24, 24)
    half = half_of(fake)
    assert half.matched(request(), 8) == 16
    assert half.matched(request(name="two"), 32) == 0
    assert half.matched(request(24, "three"), 0) == 23, "the last token must be computed"


def test_a_repeated_match_uses_the_pinned_pages(clock: VirtualClock) -> None:
    fake = FakeClient(24, 24)
    half, one = half_of(fake), request()
    for _ in range(1000):
        assert half.matched(one, 0) == 24
    assert fake.matches == 1
    clock.passes(2.5)
    assert half.matched(one, 0) == 24
    assert fake.matches == 2 and fake.pinned == 1


def test_pages_of_other_hashes_are_not_offered(clock: VirtualClock) -> None:
    """A session that is continued after another token has other hashes than those that were matched."""
    fake = FakeClient(24, 24)
    half, one = half_of(fake), request()
    assert half.matched(one, 0) == 24
    one.block_hashes = [*one.block_hashes[:4], *request(41, "other").block_hashes[:6]]
    fake.here = fake.available_tokens = 16
    assert half.matched(one, 0) == 16
    assert fake.pinned == 1


def test_a_request_waits_for_pages_on_disk(clock: VirtualClock) -> None:
    fake = FakeClient(8, 24)
    half, one = half_of(fake), request()
    for _ in range(1000):
        assert half.matched(one, 0) is None
    assert eventually(lambda: fake.prefetches == 1)
    assert (fake.matches, fake.pinned) == (1, 0)
    fake.here, fake.answered = 24, True
    assert eventually(lambda: half.matched(one, 0) == 24)
    assert half.by_tier(one, 24) == LoadedTokens(24, 8)
    assert half.by_tier(one, 20) == LoadedTokens(20, 4)


def waiting(half: SchedulerHalf, fake: FakeClient) -> Any:
    """Returns a request that waits for the disk."""
    one = request()
    assert half.matched(one, 0) is None and half.matched(one, 0) is None
    assert eventually(lambda: bool(fake.calls))
    return one


def test_a_request_that_waits_is_told_of_the_end_of_its_read(clock: VirtualClock) -> None:
    fake = FakeClient(8, 24)
    half = half_of(fake)
    one = waiting(half, fake)
    assert half.sleeps(one, 0) and not half.sleeps(one, 4), "vLLM's own cache has got more"
    assert not half.sleeps(request(name="two"), 0)
    fake.here, fake.answered = 24, True
    assert half.sleeps(one, 0), "the scheduler looks at no read"
    for call in fake.calls:
        call()
    assert not half.sleeps(one, 0) and half.matched(one, 0) == 24


def test_a_request_that_waits_is_told_of_a_read_that_ended_before_it_slept(clock: VirtualClock) -> None:
    fake = FakeClient(8, 24)
    half, one = half_of(fake), request()
    assert half.matched(one, 0) is None
    assert eventually(lambda: bool(fake.calls))
    for call in fake.calls:
        call()
    assert half.matched(one, 0) is None and not half.sleeps(one, 0), "its read is not known to have ended"


def test_a_request_that_waits_wakes_at_the_end_of_its_time_and_after_a_reset(clock: VirtualClock) -> None:
    fake = FakeClient(8, 24)
    half = half_of(fake)
    one = waiting(half, fake)
    clock.passes(1.9)
    assert half.sleeps(one, 0)
    half.renew()
    assert not half.sleeps(one, 0)
    assert half.matched(one, 0) is None and half.matched(one, 0) is None and half.sleeps(one, 0)
    clock.passes(2.1)
    assert not half.sleeps(one, 0)


def test_a_step_costs_one_call_for_each_request_that_waits(clock: VirtualClock) -> None:
    fake = FakeClient(8, 24)
    half = half_of(fake)
    ones = [request(name=f"r{number}") for number in range(50)]
    for one in (*ones, *ones):
        assert half.matched(one, 0) is None
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        asleep = [half.sleeps(one, 0) for one in ones]
    finally:
        sys.setprofile(None)
    assert all(asleep)
    assert [name for name in calls if name not in ("<lambda>", "<listcomp>")] == ["sleeps"] * 50


def test_what_is_slower_than_computing_is_counted(clock: VirtualClock) -> None:
    """A read that took a second, where four pages take 10 ms to compute."""
    fake = FakeClient(8, 24)
    half = half_of(fake)
    waiting(half, fake)
    clock.passes(1.0)
    fake.answered = True
    for call in fake.calls:
        call()
    for tokens in (8, 16, 32):
        half.reads.rule.computed(tokens, 0, tokens / 1600)
    slower = request(name="slower")
    assert half.matched(slower, 0) == 8
    half.allocated(slower, (), 0)
    assert fake.counted[-1].disk_slower_tokens == 16 and fake.counted[-1].missed_tokens >= 16
    assert half.counters.taken()["disk_slower_tokens"] == 16


def test_a_request_does_not_wait_longer_than_the_timeout(clock: VirtualClock) -> None:
    fake = FakeClient(8, 24)
    half, one = half_of(fake), request()
    assert half.matched(one, 0) is None
    clock.passes(1.9)
    assert half.matched(one, 0) is None
    clock.passes(0.2)
    assert half.matched(one, 0) == 8
    assert eventually(lambda: fake.prefetches == 1)


def test_a_hanging_daemon_blocks_the_prefetch_thread_but_not_the_scheduler(clock: VirtualClock) -> None:
    """A daemon that hung accepted no requests, and each lookup blocked the scheduler for a second."""
    fake = FakeClient(8, 24)
    fake.takes.clear()
    half, one = half_of(fake), request()
    assert half.matched(one, 0) is None
    clock.passes(2.1)
    assert half.matched(one, 0) == 8
    assert half.matched(request(name="two"), 0) is None
    assert fake.asked.wait(PATIENCE_S) and not fake.prefetches
    half._prefetches.close()
    fake.takes.set()
    assert eventually(lambda: fake.prefetches == 1), "the first prefetch was not sent"


def test_with_a_timeout_of_zero_no_request_waits(clock: VirtualClock) -> None:
    """The disk is still asked, for the next request."""
    fake = FakeClient(8, 24)
    half = half_of(fake, 0.0)
    assert half.matched(request(), 0) == 8
    assert eventually(lambda: fake.prefetches == 1)
    assert fake.timeout > 0


def test_tokens_in_the_engines_own_cache_are_not_prefetched(clock: VirtualClock) -> None:
    fake = FakeClient(8, 24)
    half = half_of(fake)
    assert half.matched(request(), 24) == 0
    assert not fake.prefetches


def test_pins_of_waiting_requests_are_released(clock: VirtualClock) -> None:
    fake = FakeClient(24, 24)
    half = half_of(fake)
    half.matched(request(), 0)
    half.build(nothing_scheduled())
    assert fake.pinned == 1
    clock.passes(2.5)
    half.build(nothing_scheduled())
    assert fake.pinned == 0


def test_a_load_is_not_offered_after_two_failures(clock: VirtualClock) -> None:
    fake = FakeClient(24, 24)
    half, one = half_of(fake), request()
    offered = []
    for _ in range(5):
        offered.append(half.matched(one, 0))
        half.allocated(one, [], offered[-1] or 0)
        half.failed(["one", "unknown"], frozenset())
        half.loaded(["one", "unknown"])
    assert offered[0] == 24 and offered[-1] == 0 and len(set(offered)) == 2
    assert fake.pinned == 0


def test_pages_stay_pinned_until_they_are_loaded(clock: VirtualClock) -> None:
    fake = FakeClient(24, 24)
    half, one = half_of(fake), request()
    half.allocated(one, [], half.matched(one, 0) or 0)
    clock.passes(100)
    half.build(nothing_scheduled())
    half.finished(one, [[]])
    assert fake.pinned == 1
    half.loaded(["one"])
    assert fake.pinned == 0


def test_blocks_into_which_another_connector_loads_are_written_in_that_step() -> None:
    """Stores that still read them must end first: pages were stored with the other connector's bytes."""
    half, one = half_of(FakeClient()), request()
    half.expect(one, 0)
    half.allocated(one, [[SimpleNamespace(block_id=at, is_null=False) for at in (4, 5)]], 0)
    assert half.build(nothing_scheduled()).written == {4, 5}
    assert half.build(nothing_scheduled()).written == set()
    assert not half.finished(one, [[4, 5]]), "nothing of it was computed"


def test_blocks_of_a_session_that_is_not_cached_are_written_too() -> None:
    half, one = half_of(FakeClient()), request()
    half.caches_sessions, one.resumable = False, True
    half.expect(one, 0)
    assert not half.matched(one, 0)
    half.allocated(one, [[SimpleNamespace(block_id=at, is_null=False) for at in (4, 5)]], 0)
    assert half.build(nothing_scheduled()).written == {4, 5}


def test_without_a_fleet_that_answers_an_arrival_costs_no_match() -> None:
    fake = FakeClient()
    half_of(fake, 0.0).arrived(request())
    assert not fake.matches


def test_without_a_daemon_nothing_is_found() -> None:
    half = half_of(Client("/nowhere/pagetier.sock"))
    assert half.matched(request(), 0) == 0
    half.close()


def test_a_partly_accepted_load_has_no_pages() -> None:
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
