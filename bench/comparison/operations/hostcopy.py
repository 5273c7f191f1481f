"""Copies between host memory and the arena, in pages of two sizes."""

from __future__ import annotations

import itertools

from comparison.recorder import Recorder
from daemon_setup import Stage, settle
from hostcopy import MIB, warm
from pagetier.client import Client, Keys, Namespace

_ROTATED = 128 * MIB  # more than fits into the caches


def measure(recorder: Recorder) -> None:
    """Measures large pages one at a time, and small ones 64 at a time."""
    with (
        Stage("--arena-size", "512MiB", PAGETIER_ARENA_FRAME_SIZE="64KiB") as stage,
        recorder.attached(stage) as client,
    ):
        settle()
        _copy(recorder, client, "8 MiB", 8 * MIB, 1)
        _copy(recorder, client, "64 x 64 KiB", MIB // 16, 64)


def _copy(recorder: Recorder, client: Client, name: str, nbytes: int, pages: int) -> None:
    """Measures stores that evict earlier pages, then loads of the pages that were stored last."""
    memory = warm(_ROTATED).reshape(-1, pages, nbytes)
    space = Namespace(model=name, dtype="none", page_tokens=1)
    rows = itertools.cycle(range(len(memory)))
    stored: list[Keys] = []

    def store() -> None:
        start = len(stored) * pages
        keys = space.keys(range(start, start + pages))
        assert client.store(keys, memory[next(rows)]).stored == pages
        stored.append(keys)

    def load() -> None:
        row = next(rows)
        with client.match(stored[-1 - row]) as match:
            assert client.load(match, memory[row]) == pages

    for _ in range(2 * 512 * MIB // (nbytes * pages)):  # the first store into a frame maps it
        store()
    recorder.time(f"store {name}", 20, store)
    recorder.time(f"load {name}", 20, load)
