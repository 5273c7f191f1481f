"""Rates and ratios of the last minutes, from constructed snapshots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_snapshots import history, snapshot
from pagetier.daemon.cli.top.history import History, Moment
from pagetier.daemon.stats.snapshot import Snapshot


def test_one_snapshot_has_no_rates() -> None:
    seen = history((0.0, snapshot(hits=5, misses=5)))
    assert seen.rate(lambda s: s.tiers.memory.hits) == 0
    assert seen.ratio() is seen.ratio_now() is None
    assert set(seen.ratios(10)) == {None}


def test_rates_are_of_the_last_two_snapshots() -> None:
    seen = history((0.0, snapshot(hits=0)), (1.0, snapshot(hits=1000)), (3.0, snapshot(hits=1010)))
    assert seen.rate(lambda s: s.tiers.memory.hits) == pytest.approx(5)


def test_ratios_are_of_lookups_between_snapshots() -> None:
    seen = history(
        (0.0, snapshot(hits=100, misses=900)),
        (100.0, snapshot(hits=190, misses=910)),
        (200.0, snapshot(hits=190, misses=910)),
        (250.0, snapshot(hits=200, misses=1000)),
    )
    assert seen.ratio() == pytest.approx(100 / 200)
    assert seen.ratio_now() == pytest.approx(10 / 100)
    assert seen.ratios(3) == [None, 0.9, 0.1]


def test_snapshots_older_than_the_window_are_dropped() -> None:
    seen = history((0.0, snapshot(hits=0)), (1.0, snapshot(hits=100)), (1000.0, snapshot(hits=100, misses=100)))
    assert seen.ratio() is None


@pytest.mark.parametrize("other", [snapshot(segments="other"), snapshot(hits=3)])
def test_new_segments_clear_the_history(other: Snapshot) -> None:
    seen = history((0.0, snapshot(hits=5)), (1.0, snapshot(hits=10)), (2.0, other))
    assert seen.rate(lambda s: s.tiers.memory.hits) == 0
    assert seen.now is other


def test_a_client_is_distinguished_from_another_in_its_slot() -> None:
    seen = history((0.0, snapshot(pid=7, lookups=1000)), (1.0, snapshot(pid=8, lookups=10)))
    (client,) = seen.now.clients
    assert seen.rate_of(client, lambda c: c.lookups) == 0
    seen.add(Moment(2.0, snapshot(pid=8, lookups=60)))
    assert seen.rate_of(client, lambda c: c.lookups) == pytest.approx(50)


@given(
    st.lists(st.tuples(st.floats(0.01, 50), st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=40),
    st.integers(1, 60),
)
def test_ratios_are_between_0_and_1(steps: list[tuple[float, int, int]], columns: int) -> None:
    at, hits, misses, seen = 0.0, 0, 0, History()
    for seconds, found, missed in steps:
        at, hits, misses = at + seconds, hits + found, misses + missed
        seen.add(Moment(at, snapshot(hits=hits, misses=misses)))
    ratios = seen.ratios(columns)
    assert len(ratios) == columns
    assert all(ratio is None or 0 <= ratio <= 1 for ratio in ratios)
