"""An engine for tests of the service: stores, matches and loads all the time, and prints its state in lines of JSON.

python engine_main.py PAGES PROMPTS. It uses this number of prompts in turn, and stores their missing pages.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from eventually import pace
from pagetier.client import Client, Keys, Namespace

PAGE_BYTES, PAGE_TOKENS = 60_000, 16


def is_mapped() -> bool:
    """Returns whether this process has mapped the arena."""
    return ".arena" in Path("/proc/self/maps").read_text()


def keys_of(prompt: int, pages: int) -> Keys:
    """Returns the keys of one prompt."""
    space = Namespace(model="test/model", dtype="float32", page_tokens=PAGE_TOKENS, salt=str(prompt))
    return space.keys(range(PAGE_TOKENS * pages))


def main(pages: int, prompts: int) -> None:
    """Works until it is killed."""
    wanted = np.random.default_rng(pages).integers(0, 256, (pages, PAGE_BYTES), dtype=np.uint8)
    out = np.zeros_like(wanted)
    counts: Counter[str] = Counter(rounds=0, hits=0, wrong=0, stored=0)
    with Client(name="engine") as client:
        while True:
            keys = keys_of(counts["rounds"] % prompts, pages)
            with client.match(keys) as match:
                loaded = client.load(match, out, timeout=2.0)
            counts["wrong"] += int((out[:loaded] != wanted[:loaded]).any(axis=1).sum())
            if loaded < pages:
                counts["stored"] += client.store(keys, wanted).stored
            counts["rounds"] += 1
            report = {**counts, "hits": loaded, "attached": client.attached, "mapped": is_mapped()}
            print(json.dumps(report), flush=True)  # noqa: T201  the test reads it
            pace(0.02)


main(*map(int, sys.argv[1:]))
