"""Tests that the hit ratios which the daemon predicts are those of LRU, with any arena and policy."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

import curve
from eviction.core import compiled_core, predict
from eviction.traces import Trace
from pagetier.shm._core import Absence

SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


@pytest.fixture(scope="module")
def core() -> ctypes.CDLL:
    return compiled_core()


def sessions(seed: int, requests: int, known: float) -> Trace:
    """Returns sessions that grow with each request; `known` of the requests continue one, of any age."""
    draw, pages = random.Random(seed), 0
    prompts: list[list[int]] = []
    open_sessions: list[list[int]] = []
    for _ in range(requests):
        if open_sessions and draw.random() < known:
            chosen = open_sessions.pop(-min(len(open_sessions), int(draw.paretovariate(0.15))))
        else:
            chosen = list(range(32))  # all sessions begin alike
            pages = max(pages, 32)
        more = draw.randint(1, 24)
        chosen = [*chosen, *range(pages, pages + more)]
        pages += more
        open_sessions.append(chosen)
        prompts.append(chosen[:600])
    starts = np.cumsum([0, *map(len, prompts)]).astype(np.int64)
    return Trace(starts, np.concatenate(prompts).astype(np.int32), np.linspace(0, requests / 20, requests), pages)


@pytest.mark.parametrize(("requests", "known", "samples_all"), [(2000, 0.7, True), (6500, 0.6, False)])
def test_the_predictions_are_what_lru_hits_with_any_arena(
    core: ctypes.CDLL, requests: int, known: float, samples_all: bool
) -> None:
    rows = [*curve.rows_of(core, "sessions", sessions(requests, requests, known), "lru", SIZES, SIZES)]
    for row in rows:
        assert max(row.errors) <= curve.MOST, row
        assert sum(row.errors) / len(row.errors) <= curve.MEAN, row
        assert (row.sampled > 0.99) == samples_all, row
    assert rows[0].measured[-1] - rows[0].measured[0] > 0.1, "a curve that is flat proves nothing"


def test_a_daemon_that_evicts_by_cadence_predicts_the_least_that_it_hits(core: ctypes.CDLL) -> None:
    trace = sessions(6500, 6500, 0.8)
    (lru,) = curve.rows_of(core, "sessions", trace, "lru", (5.0,), SIZES)
    for row in curve.rows_of(core, "sessions", trace, "cadence", (1.0, 5.0), SIZES):
        assert row.predicted == pytest.approx(lru.measured, abs=curve.MOST), row
        assert max(row.errors) <= curve.MEAN, row
        assert max(hit - least for hit, least in zip(row.measured, row.predicted, strict=True)) > 0.01, "as LRU hits"


def test_an_absent_page_was_evicted_or_never_stored(core: ctypes.CDLL) -> None:
    trace = sessions(7, 1000, 0.7)
    _, large = predict(core, trace, trace.distinct, "lru", np.array([1.0]))
    _, small = predict(core, trace, trace.room(20), "lru", np.array([1.0]))
    assert large.absent[Absence.NEVER_STORED] == pytest.approx(1.0)
    assert small.absent[Absence.EVICTED_FROM_MEMORY] > 0.1
    assert sum(small.absent) == pytest.approx(1.0)
    assert large.endless == pytest.approx(small.endless, abs=0.001)
