"""A hybrid model's engine: three groups of layers in one cache, with known state."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from pagetier.client import (
    NO_BLOCK,
    CacheGroup,
    Client,
    FullAttention,
    Recurrent,
    RegisteredGroups,
    SlidingWindow,
)

BLOCKS, BLOCK, PAGE, SNAPSHOT, TOKENS = 48, 16, 32, 64, 256


class HybridEngine:
    """A hybrid model: full attention, a window of 40 tokens, and a recurrent state every 64 tokens.

    Without a name it is a model of its own.
    """

    def __init__(self, client: Client, model: str = "") -> None:
        rng = np.random.default_rng(11)
        self.full, self.window = rng.integers(0, 2**16, (2, 1, BLOCKS, 2, BLOCK, 2, 8), np.uint16)
        self.states = rng.integers(0, 256, (BLOCKS, 3, 5), np.uint8)
        groups = [
            CacheGroup(kv_caches=list(self.full), layout="flashinfer", kind=FullAttention(PAGE)),
            CacheGroup(kv_caches=list(self.window), layout="flashinfer", kind=SlidingWindow(PAGE, window=40)),
            CacheGroup(kv_caches=[[self.states]], layout="states", kind=Recurrent(SNAPSHOT)),
        ]
        self.groups: RegisteredGroups = client.register(groups=groups, model=model or os.urandom(8).hex())
        self.prompt = list(range(TOKENS + 7))


def tables(first: int, *snapshots: int) -> list[Any]:
    """Returns block tables from a first block on: the window has its last four blocks, and states some snapshots."""
    full = np.arange(first, first + TOKENS // BLOCK)
    window = np.where(np.arange(len(full)) < len(full) - 4, NO_BLOCK, full)
    states = np.full(TOKENS // SNAPSHOT, NO_BLOCK)
    states[list(snapshots)] = [first + at for at in snapshots]
    return [full, window, states]


def same(engine: HybridEngine, one: int, other: int, snapshot: int) -> bool:
    """Returns whether two sets of blocks have the same state for a hit of the whole prompt."""
    blocks, last = np.arange(TOKENS // BLOCK), np.arange(TOKENS // BLOCK - 4, TOKENS // BLOCK)
    return (
        np.array_equal(engine.full[:, one + blocks], engine.full[:, other + blocks])
        and np.array_equal(engine.window[:, one + last], engine.window[:, other + last])
        and np.array_equal(engine.states[one + snapshot], engine.states[other + snapshot])
    )
