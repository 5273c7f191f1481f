"""Finds the prefix on which all layer groups of a hybrid model agree. Needs a running pagetierd."""

from __future__ import annotations

import sys

import numpy as np

from pagetier.client import Client, FullAttention, GroupKeys, Namespace, Recurrent, SlidingWindow

TOKENS, PAGE_BYTES = 4096, 64 << 10
GROUPS = (FullAttention(256), SlidingWindow(256, window=1024), Recurrent(1024))


def main() -> int:
    """Returns 0 if all groups are loaded at the last token that all of them can resume from."""
    spaces = [
        Namespace(model="example/hybrid", dtype="bfloat16", page_tokens=group.page_tokens, layout=type(group).__name__)
        for group in GROUPS
    ]
    groups = [GroupKeys(group, space.keys(range(TOKENS))) for group, space in zip(GROUPS, spaces, strict=True)]

    with Client(name="hybrid-engine") as client:
        client.wait_attached(5.0)
        for number, asked in enumerate(groups):
            keys = asked.keys[:-1] if isinstance(asked.group, Recurrent) else asked.keys  # its last state is missing
            print(client.store(keys, np.full((len(keys), PAGE_BYTES), number, np.uint8)))
        with client.match_groups(groups) as found:  # all groups or none
            exact = found.tokens == TOKENS - 1024
            for number, (match, start) in enumerate(zip(found.matches, found.start_pages, strict=True)):
                out = np.full((len(match), PAGE_BYTES), 255, np.uint8)
                exact &= client.load(match, out) == len(match) and bool((out == number).all())
                print(f"{GROUPS[number]}: pages {start} to {start + len(match) - 1} loaded")
        print(f"{found.tokens} of {TOKENS} tokens need no prefill, {'equal' if exact else 'different'}")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
