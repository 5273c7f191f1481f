"""Many requests of one prefix that is on disk: it is read once, and each of them computes only what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from eventually import eventually
from fake_vllm_client import PAGE, FakeClient, request
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.vllm.tier_reads import ReadLimits
from pagetier.client.groups import FullAttention
from pagetier.client.load_or_compute import Decision, LoadOrCompute
from pagetier.client.tier_speed import LoadTier
from running_daemon import namespace
from virtual_clock import VirtualClock

REQUESTS, PREFIX = 50, 24
READ_S, COMPUTE_S = 0.5, 0.6  # the prefix


@pytest.fixture
def clock(standing_clock: VirtualClock) -> VirtualClock:
    """Returns the time of the scheduler."""
    return standing_clock


def taught(rule: LoadOrCompute, now: float) -> None:
    """Lets a rule know how long the prefix takes to compute, and to read."""
    for tokens in (PREFIX // 4, PREFIX // 2, PREFIX, 2 * PREFIX):
        rule.computed(tokens, 0.0, COMPUTE_S * tokens / PREFIX)
    for ago in (20.0, 10.0):
        rule.ended(rule.sent(LoadTier.DISK, PREFIX, 2.0, now - ago), 1.0, now - ago + READ_S)


def arrive(half: SchedulerHalf, fake: FakeClient, names: Sequence[str]) -> list[Any]:
    """Returns requests that wait for the prefix, whose reads were sent."""
    sent, ones = fake.prefetches, [request(name=name) for name in names]
    for one in ones:
        assert half.matched(one, 0) is None, "it would compute the prefix"
    assert eventually(lambda: fake.prefetches == sent + len(names))
    assert [half.matched(one, 0) for one in ones] == [None] * len(ones)
    assert all(half.sleeps(one, 0) for one in ones)
    return ones


def test_requests_of_one_prefix_take_one_read_and_compute_the_rest(clock: VirtualClock) -> None:
    """Half of them come shortly before the end of the read. The daemon reads pages once that several ask for."""
    fake = FakeClient(0, PREFIX)
    half = SchedulerHalf(fake, [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)], ReadLimits(2.0))  # type: ignore[arg-type]
    rule, begun = half.reads.rule, clock.now
    taught(rule, begun)
    ones = arrive(half, fake, [f"early {number}" for number in range(REQUESTS // 2)])
    clock.passes(0.9 * READ_S)
    ones += arrive(half, fake, [f"late {number}" for number in range(REQUESTS // 2)])
    clock.passes(0.1 * READ_S)
    fake.here, fake.answered = PREFIX, True
    for call in fake.calls:
        call()
    assert not any(half.sleeps(one, 0) for one in ones)
    assert [half.matched(one, 0) for one in ones] == [PREFIX] * REQUESTS
    assert clock.now == pytest.approx(begun + READ_S)
    now = clock.now + 10.0
    assert rule.part_in_time(LoadTier.DISK, PREFIX, 0.9 * READ_S, now) < 1, "the late ones measured no fast disk"
    found = rule.decide(LoadTier.DISK, range(PREFIX), now)
    assert found in (Decision.LOAD, Decision.TRY), "nor the early ones a slow one"
