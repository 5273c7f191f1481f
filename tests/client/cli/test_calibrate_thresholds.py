"""Tests how thresholds are computed from any table of speeds: with noise, with gaps, and without any speed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_speeds import Table, saturating, speeds
from pagetier.client.cli.calibrate.measure import RUNS
from pagetier.client.cli.calibrate.thresholds import ALWAYS, COPY_PATHS, Speed, path_of, thresholds_of
from pagetier.kernels.config.copy_settings import Thresholds

KIB = 1 << 10


def speed_of(table: Table, thresholds: Thresholds, at: int) -> float:
    return table[path_of(thresholds, RUNS[at])][at]


def score(table: Table, thresholds: Thresholds) -> float:
    """Returns the score that the thresholds maximise: a kernel must gain more than 3 %."""
    taken = [(path_of(thresholds, nbytes), at) for at, nbytes in enumerate(RUNS)]
    return sum(math.log(table[path][at]) - (0 if path == "dma" else math.log(1.03)) for path, at in taken)


def test_the_threshold_of_two_ways_is_where_their_speeds_cross() -> None:
    # 45 = 50 x / (x + 4 KiB) at x = 36 KiB
    table = {"kernel": [45.0] * 11, "dma": saturating(50, 4 * KIB)}
    found = thresholds_of(speeds(table))
    assert found.kernel_below == found.staged_below
    assert 24 * KIB <= found.kernel_below <= 36 * KIB


def test_a_way_that_is_always_the_fastest_gets_all_lengths() -> None:
    for best, expected in (
        ("kernel", Thresholds(ALWAYS, ALWAYS)),
        ("staged", Thresholds(0, ALWAYS)),
        ("dma", Thresholds(0, 0)),
    ):
        table: Table = {path: [50.0 if path == best else 40.0] * 11 for path in COPY_PATHS}
        assert thresholds_of(speeds(table)) == expected


def test_among_equals_the_way_that_uses_no_processors_is_chosen() -> None:
    table: dict[str, list[float]] = {path: [50.0] * 11 for path in COPY_PATHS}
    assert thresholds_of(speeds(table)) == Thresholds(0, 0)
    table["kernel"] = [51.0] * 11
    assert thresholds_of(speeds(table)) == Thresholds(0, 0)
    table["dma"] = [40.0] * 11
    table["kernel"] = table["staged"]
    assert thresholds_of(speeds(table)) == Thresholds(ALWAYS, ALWAYS)


def test_ways_without_a_speed_are_not_chosen() -> None:
    table = {"kernel": [45.0] * 11}
    assert thresholds_of(speeds(table)) == Thresholds(ALWAYS, ALWAYS)
    table = {"dma": [45.0] * 11, "kernel": [math.nan, 0.0, -1.0, math.inf], "host": [99.0] * 11}
    assert thresholds_of(speeds(table)) == Thresholds(0, 0)
    assert thresholds_of([Speed("kernel", 4096, 1.0), Speed("dma", 8192, 1.0)]) == Thresholds(6 * KIB, 6 * KIB)
    for nothing in ([], [Speed("kernel", 4096, 0.0)], [Speed("host", 4096, 1.0)]):
        with pytest.raises(ValueError, match="no speed"):
            thresholds_of(nothing)


any_table = st.dictionaries(
    st.sampled_from([*COPY_PATHS, "host"]), st.lists(st.floats(allow_nan=True), max_size=11), min_size=1
)
positive_table = st.fixed_dictionaries(
    {path: st.lists(st.floats(0.01, 1000), min_size=11, max_size=11) for path in COPY_PATHS}
)


@given(any_table, st.randoms())
def test_any_table_gives_thresholds_or_a_clear_error(table: Table, rng: object) -> None:
    rows = speeds(table)
    try:
        found = thresholds_of(rows)
    except ValueError as error:
        assert str(error) == "no speed was measured"
        return
    assert 0 <= found.kernel_below <= found.staged_below <= ALWAYS
    rng.shuffle(rows)  # type: ignore[attr-defined]
    assert thresholds_of(rows) == found


@given(positive_table)
def test_no_other_division_is_better_on_the_whole(table: Table) -> None:
    best = score(table, thresholds_of(speeds(table)))
    edges = [0, *(nbytes + 1 for nbytes in RUNS)]
    for first, kernel_below in enumerate(edges):
        for staged_below in edges[first:]:
            assert score(table, Thresholds(kernel_below, staged_below)) <= best + 1e-6


@given(
    peaks=st.tuples(st.floats(20, 40), st.floats(30, 50), st.floats(40, 60)),
    costs=st.tuples(st.floats(1, 500), st.floats(500, 8000), st.floats(4000, 60000)),
    noise=st.lists(st.floats(0.95, 1.05), min_size=33, max_size=33),
)
def test_with_noise_the_chosen_way_is_nearly_the_fastest(
    peaks: tuple[float, ...], costs: tuple[float, ...], noise: list[float]
) -> None:
    clean: Table = {path: saturating(peak, cost) for path, peak, cost in zip(COPY_PATHS, peaks, costs, strict=True)}
    noisy: Table = {
        path: [value * noise[11 * row + at] for at, value in enumerate(clean[path])]
        for row, path in enumerate(COPY_PATHS)
    }
    found = thresholds_of(speeds(noisy))
    losses = [1 - speed_of(clean, found, at) / max(clean[path][at] for path in COPY_PATHS) for at in range(11)]
    assert sum(losses) / len(losses) < 0.13 + 1e-9  # the noise in both directions, and the handicap
    assert max(losses) < 0.5
