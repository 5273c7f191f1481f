"""A full index for benchmarks: its sizes, its keys, and the operations on it."""

from __future__ import annotations

import os

import numpy as np

from pagetier.client import Client, Keys, Namespace

ENTRIES = int(os.environ.get("BENCH_ENTRIES", "1000000"))
FRAME = 4096
FILL = 8192
SPACE = Namespace(model="bench", dtype="none", page_tokens=256)
SIZES = {
    "PAGETIER_ARENA_SIZE": str(FRAME * ENTRIES),
    "PAGETIER_ARENA_FRAME_SIZE": str(FRAME),
    "PAGETIER_ARENA_PREFAULT": "lazy",
    "PAGETIER_INDEX_NAMESPACES": "16",
    "PAGETIER_EVICT_FREE": "0",
    "PAGETIER_EVICT_LOW": "0",
    "PAGETIER_EVICT_HIGH": "0",
}
"""The settings of the daemon, also of older commits, as variables: no page is evicted before the arena is full."""


def all_keys() -> Keys:
    """Returns the keys of a full index: random, like digests."""
    return Keys(SPACE, np.random.default_rng(1).bytes(32 * ENTRIES))


def some_of(keys: Keys, count: int, seed: int) -> Keys:
    """Returns `count` distinct keys in random order."""
    rows = np.frombuffer(keys.data, dtype="V32")
    return Keys(SPACE, np.random.default_rng(seed).choice(rows, count, replace=False).tobytes())


def fill(client: Client, keys: Keys) -> None:
    """Stores pages of one frame without writing their bytes."""
    for at in range(0, len(keys), FILL):
        client.reserve(keys[at : at + FILL], FRAME).publish()


def find(client: Client, keys: Keys) -> None:
    """Matches and releases once."""
    with client.match(keys) as match:
        assert len(match) == len(keys)
