"""Loads the prefix on which all layer groups of a hybrid model agree. Needs a running pagetierd."""

from __future__ import annotations

import sys

import numpy as np

from pagetier.client import NO_BLOCK, CacheGroup, Client, FullAttention, Recurrent, SlidingWindow


def main() -> int:
    """Returns 0 if all groups are loaded at the last token that all of them can resume from."""
    rng = np.random.default_rng(7)
    full, window = rng.integers(0, 2**16, (2, 1, 128, 2, 16, 4, 32), np.uint16)  # one layer each
    states = rng.integers(0, 256, (16, 4096), np.uint8)  # a state in each block
    groups = [
        CacheGroup(kv_caches=full, layout="flashinfer", kind=FullAttention(256)),
        CacheGroup(kv_caches=window, layout="flashinfer", kind=SlidingWindow(256, window=300)),
        CacheGroup(kv_caches=[[states]], layout="states", kind=Recurrent(256)),
    ]
    blocks, snapshots = np.arange(64), np.array([NO_BLOCK, 1, 2, NO_BLOCK])  # states after 512 and 768 tokens only

    with Client(name="hybrid-engine") as client:
        cache = client.register(groups=groups, model="example/hybrid")
        if not client.wait_attached(5.0):
            sys.exit("no daemon: start pagetierd first")
        print(*cache.store(range(1024), [blocks, blocks, snapshots]))  # a result for each group
        others = np.where(snapshots == NO_BLOCK, NO_BLOCK, snapshots + 8)
        with cache.match(range(1024)) as hit:
            cached = cache.load(hit, [blocks + 64, blocks + 64, others])  # all groups or none
    exact = cached == 768 and all(np.array_equal(one[:, 16:48], one[:, 80:112]) for one in (full, window))
    exact &= np.array_equal(states[2], states[10])
    print(f"{cached} of 1024 tokens need no prefill, {'equal' if exact else 'different'}")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
