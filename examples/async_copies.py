"""Stores and loads in the background, layer by layer, on the host. Needs a running pagetierd."""

from __future__ import annotations

import sys

import numpy as np

from pagetier.client import Client, Namespace
from pagetier.client.async_copy import open_copier
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache


def main() -> int:
    """Returns 0 if every layer of a prompt comes back before it is needed."""
    kv_caches = np.random.default_rng(7).integers(0, 2**16, (4, 2, 64, 16, 8, 128), np.uint16)
    layout = engine_layouts.kv_first(list(kv_caches))  # for each layer: [K and V, blocks, tokens, heads, dim]
    cache = PagedCache(layout, page_layout := PageLayout.of(layout, 256))
    keys = Namespace(model="example/async", dtype="uint16", page_tokens=256, layout=page_layout.layout).keys(range(512))

    with Client(name="async-engine") as client:
        client.wait_attached(5.0)
        copier = open_copier(client, cache)  # on a GPU it registers the arena with the driver in the background
        store = copier.store(keys, slot_map(range(32), len(keys), 256, 16))
        print(store.wait(5.0))  # from now on the blocks may be overwritten
        with client.match(keys) as match:  # the load pins the pages for itself
            load = copier.load(match, slot_map(range(32, 64), len(match), 256, 16))
        ready = [load.wait(layer, 5.0) for layer in range(load.layers)]  # on a GPU: load.make_stream_wait()
        copier.close(5.0)  # before the client
    exact = all(ready) and load.pages == len(keys) and np.array_equal(kv_caches[:, :, :32], kv_caches[:, :, 32:])
    print(f"{load.pages} pages, {sum(ready)} layers loaded, {'equal' if exact else 'different'}")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
