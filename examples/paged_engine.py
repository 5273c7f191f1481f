"""Stores and loads blocks of a paged KV cache by tokens and block tables. Needs a running pagetierd."""

from __future__ import annotations

import sys

import numpy as np

from pagetier.client import Client

LAYERS, BLOCKS, BLOCK_TOKENS, HEADS, DIM = 4, 64, 16, 8, 128


def main() -> int:
    """Returns 0 if a prompt moves from scattered blocks to other blocks without a change."""
    shape = (LAYERS, BLOCKS, 2, BLOCK_TOKENS, HEADS, DIM)  # for each layer: [blocks, K and V, tokens, heads, dim]
    kv_caches = np.random.default_rng(7).integers(0, 2**16, shape, np.uint16)
    token_ids = range(512)
    written, read = np.arange(31, -1, -1), np.arange(32, 64)  # the block table of the store, then of the load

    with Client(name="paged-engine") as client:
        cache = client.register(kv_caches, layout="flashinfer", model="example/paged", page_tokens=256)
        if not client.wait_attached(5.0):
            sys.exit("no daemon: start pagetierd first")
        print(cache.store(token_ids, written))
        with cache.match(token_ids) as hit:  # the pages stay pinned until the block ends
            cached = cache.load(hit, read, timeout=0.5)
    exact = cached == len(token_ids) and np.array_equal(kv_caches[:, written], kv_caches[:, read])
    print(f"{cached} of {len(token_ids)} tokens need no prefill, {'equal' if exact else 'different'}")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
