"""Matches, stores without bytes, and keys, in a large index."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from comparison.recorder import Recorder
from daemon_setup import Stage, settle
from full_index import ENTRIES, FILL, FRAME, SIZES, SPACE, all_keys, fill, find, some_of
from pagetier.client import Client, Keys

_TURNS = int(os.environ.get("BENCH_TURNS", "20"))
_SAMPLES = 5 * _TURNS
_STORED, _CALLS = 512, 100


def measure(recorder: Recorder) -> None:
    """Measures on one daemon. The index has room for the pages that are stored, so none is evicted."""
    with Stage(**SIZES) as stage, recorder.attached(stage) as client:
        keys = all_keys()[: ENTRIES - _STORED * _SAMPLES]
        fill(client, keys)
        settle()
        _match(recorder, client, keys)
        _store(recorder, client)


def _match(recorder: Recorder, client: Client, keys: Keys) -> None:
    pages = min(FILL, len(keys) // 2)
    mixed = some_of(keys, min(60 * pages, len(keys)), 3)
    batches = [mixed[at : at + pages] for at in range(0, len(mixed) - pages + 1, pages)]
    unknown = Keys(SPACE, np.random.default_rng(2).bytes(32 * pages))
    hit, missed = keys[7:8], unknown[:1]
    turns = iter(batches * _SAMPLES)
    find(client, next(turns))
    recorder.time(f"match {pages} pages, hit", _TURNS, lambda: find(client, next(turns)))
    recorder.time(f"match {pages} pages, miss", _TURNS, lambda: _repeat(lambda: _miss(client, unknown)), _CALLS)
    recorder.time("match 1 page, hit", _TURNS, lambda: _repeat(lambda: find(client, hit)), _CALLS)
    recorder.time("match 1 page, miss", _TURNS, lambda: _repeat(lambda: _miss(client, missed)), _CALLS)
    tokens = np.random.default_rng(3).integers(0, 32000, 131072, dtype=np.int32)
    recorder.time("hash 131072 tokens", _TURNS, lambda: SPACE.keys(tokens))


def _repeat(action: Callable[[], None]) -> None:
    for _ in range(_CALLS):
        action()


def _miss(client: Client, keys: Keys) -> None:
    with client.match(keys) as match:
        assert not len(match)


def _store(recorder: Recorder, client: Client) -> None:
    data = np.random.default_rng(11).bytes(32 * _STORED * _SAMPLES)
    batches = iter([Keys(SPACE, data[at : at + 32 * _STORED]) for at in range(0, len(data), 32 * _STORED)])

    def store() -> None:
        assert client.reserve(next(batches), FRAME).publish().stored == _STORED

    recorder.time(f"reserve + publish {_STORED}", _TURNS, store)
