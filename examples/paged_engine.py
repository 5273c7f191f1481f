"""Stores and loads blocks of a paged KV cache in host memory. Needs a running pagetierd."""

from __future__ import annotations

import sys

import numpy as np

from pagetier.client import Blocks, Client, Namespace
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache

LAYERS, BLOCKS, BLOCK_TOKENS, HEADS, DIM, PAGE_TOKENS = 4, 64, 16, 8, 128, 256


def main() -> int:
    """Returns 0 if a prompt moves from scattered blocks to other blocks without a change."""
    shape = (LAYERS, BLOCKS, 2, BLOCK_TOKENS, HEADS, DIM)  # for each layer: [blocks, K and V, tokens, heads, dim]
    kv_caches = np.random.default_rng(7).integers(0, 2**16, shape, np.uint16)
    layout = engine_layouts.kv_second(list(kv_caches))
    cache = PagedCache(layout, page_layout := PageLayout.of_model(layout, PAGE_TOKENS, HEADS, LAYERS))
    space = Namespace(model="example/paged", dtype="uint16", page_tokens=PAGE_TOKENS, layout=page_layout.layout)
    keys = space.keys(range(2 * PAGE_TOKENS))
    written, read = np.arange(31, -1, -1), np.arange(32, 64)  # the block table of the store, then of the load

    with Client(name="paged-engine") as client:
        client.wait_attached(5.0)
        print(client.store(keys, Blocks(cache, slot_map(written, len(keys), PAGE_TOKENS, BLOCK_TOKENS))))
        with client.match(keys) as match:
            loaded = client.load(match, Blocks(cache, slot_map(read, len(match), PAGE_TOKENS, BLOCK_TOKENS)))
    exact = loaded == len(keys) and np.array_equal(kv_caches[:, written], kv_caches[:, read])
    print(f"{loaded} of {len(keys)} pages loaded, {'equal' if exact else 'different'}")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
