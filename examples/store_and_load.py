"""Stores the pages of a prompt in one client and loads them in another. Needs a running pagetierd."""

from __future__ import annotations

import sys

import numpy as np

from pagetier.client import Client, Namespace

PAGE_TOKENS, PAGE_BYTES = 256, 1 << 20


def main() -> int:
    """Returns 0 if every page comes back with the bytes that were stored."""
    space = Namespace(model="example/store-and-load", dtype="bfloat16", page_tokens=PAGE_TOKENS)
    keys = space.keys(range(4 * PAGE_TOKENS))  # one chained key for each full page of tokens
    pages = np.random.default_rng(7).integers(0, 256, (len(keys), PAGE_BYTES), np.uint8)

    with Client(name="writer") as writer:
        if not writer.wait_attached(5.0):
            sys.exit("no daemon: start pagetierd first")
        print(writer.store(keys, pages))

    out = np.zeros_like(pages)
    with Client(name="reader") as reader:
        reader.wait_attached(5.0)
        with reader.match(keys) as match:  # the pages stay pinned until the block ends
            loaded = reader.load(match, out)
    exact = loaded == len(keys) and np.array_equal(out, pages)
    print(f"{loaded} of {len(keys)} pages loaded, {'equal' if exact else 'different'}")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
