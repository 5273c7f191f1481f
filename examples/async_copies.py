"""Stores and loads in the background, layer by layer, on the host. Needs a running pagetierd."""

from __future__ import annotations

import sys

import numpy as np

from pagetier.client import Client


def main() -> int:
    """Returns 0 if every layer of a prompt comes back before it is needed."""
    kv_caches = np.random.default_rng(7).integers(0, 2**16, (4, 2, 64, 16, 8, 128), np.uint16)
    token_ids = range(512)

    with Client(name="async-engine") as client:  # at its end it waits for copies in flight
        cache = client.register(kv_caches, layout="flash_attention", model="example/async", page_tokens=256)
        if not client.wait_attached(5.0):
            sys.exit("no daemon: start pagetierd first")
        store = cache.async_store(token_ids, range(32))  # on a GPU: behind the work of the current stream
        print(store.wait(5.0))  # from now on the blocks may be overwritten
        with cache.match(token_ids) as hit:  # the load pins the pages for itself
            load = cache.async_load(hit, range(32, 64))
        ready = [load.wait(layer, 5.0) for layer in range(load.layers)]  # on a GPU: load.make_stream_wait(...)
    exact = all(ready) and load.pages == 2 and np.array_equal(kv_caches[:, :, :32], kv_caches[:, :, 32:])
    print(f"{load.pages} pages, {sum(ready)} layers loaded, {'equal' if exact else 'different'}")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
