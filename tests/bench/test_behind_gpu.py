"""Tests the replay of traces through two caches."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import behind_gpu
from eviction.core import compiled_core
from eviction.traces import Trace

PAGES = 60
ROUNDS = 5


@pytest.fixture(scope="module")
def core() -> ctypes.CDLL:
    return compiled_core()


def rounds() -> Trace:
    """Returns a trace in which prompts of three pages return in turn: an LRU has all of them, or none."""
    pages = np.tile(np.arange(PAGES, dtype=np.int32), ROUNDS)
    requests = len(pages) // 3
    return Trace(np.arange(requests + 1, dtype=np.int64) * 3, pages, np.arange(requests, dtype=np.float64), PAGES)


def test_both_caches_together_have_more_pages_if_stores_wait(core: ctypes.CDLL) -> None:
    eager = behind_gpu.replay(core, rounds(), PAGES * 2 // 3, PAGES * 2 // 3, "lru", "eager")
    on_eviction = behind_gpu.replay(core, rounds(), PAGES * 2 // 3, PAGES * 2 // 3, "lru", "on_eviction")
    assert (eager.hits, eager.stored) == (0, ROUNDS * PAGES)
    assert on_eviction.hits == (ROUNDS - 1) * PAGES
    assert on_eviction.stored < eager.stored


def test_an_engine_with_room_for_all_stores_nothing_if_stores_wait(core: ctypes.CDLL) -> None:
    for when, stored in (("eager", PAGES), ("on_eviction", 0)):
        out = behind_gpu.replay(core, rounds(), PAGES, PAGES, "lru", when)
        assert (out.hits, out.stored) == ((ROUNDS - 1) * PAGES, stored)
