"""Measures matches and copies of opaque rows against those of attention and of MLA, in CPU time for each byte.

The pages have the buffers of models that are cached as rows. What they are compared with has as many bytes and layers:
K and V, MLA latents, and rows of one buffer. All take turns, so that other work on the machine affects all alike.

`--json` writes the results to results/row-copies.json.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from daemon_setup import Stage, settle
from measure import REPORTED, Goal, Result, at_most, machine
from pagetier.client import Client
from pagetier.client.registered_cache import RegisteredCache
from results_file import row_of, run_command

RESULTS = Path(__file__).parent / "results" / "row-copies.json"
MIB = 1 << 20
ARENA_MIB = 512
CALL = 16 * MIB  # bytes that one call copies
CALLS = 4  # whose blocks a cache has: more than the processor's caches
ROUNDS = 31
MATCHES = 200  # of a turn
TOKENS = 64
NUMBERS = itertools.count(1)

Layers = Sequence[tuple[int, ...]]
"""The bytes that a page has in each buffer of each layer."""

FAMILIES: Mapping[str, Layers] = {
    "dsa": [(73_728, 8_448)] * 61,
    "dsa_fp8": [(41_984, 8_448)] * 61,
    "deepseek_v4": [(37_440, 8_448)] * 21 + [(1_728,)] * 20,
    "deepseek_v4_ends": [(149_760, 65_536, 16_384)] * 21 + [(149_760,)] * 22,
}
"""DeepSeek V3.2 in bfloat16 and FP8, pages of 64 tokens; V4 Flash: C4 and C128, windows and states, 256 tokens."""

FORMS = ("rows", "attention", "mla", "one_buffer")
PAIRS: Sequence[tuple[str, str, Goal]] = (
    ("rows", "attention", at_most(1.1)),
    ("rows", "mla", REPORTED),
    ("rows", "one_buffer", REPORTED),
    ("attention", "mla", REPORTED),
)
"""The forms that are compared. Rows of one buffer and latents have a piece a layer, K and V have two."""


class Cache(msgspec.Struct, frozen=True, eq=False):
    """A registered cache.

    Attributes:
        registered: The cache.
        pages: The pages of one call.
        nbytes: The bytes of a page.
    """

    registered: RegisteredCache
    pages: int
    nbytes: int

    @property
    def tables(self) -> list[list[int]]:
        """The blocks of each call, which together are all blocks."""
        return np.arange(CALLS * self.pages).reshape(CALLS, self.pages).tolist()

    def prompt(self) -> list[int]:
        """Returns the tokens of a new prompt."""
        return [next(NUMBERS)] * (self.pages * TOKENS)


def cache_of(client: Client, name: str, form: str, layers: Layers) -> Cache:
    """Registers a cache of some bytes a page in one of the forms that are compared."""
    nbytes = sum(map(sum, layers))
    pages = CALL // nbytes
    width = nbytes // len(layers) // TOKENS // 2 * 2  # bytes of a token and layer

    def memory(*shape: int) -> np.ndarray:
        return np.random.default_rng(5).integers(0, 256, (CALLS * pages, *shape), dtype=np.uint8)

    match form:
        case "rows":
            tensors: object = [[memory(size) for size in sizes] for sizes in layers]
        case "one_buffer":
            tensors = [[memory(TOKENS * width)] for _ in layers]
        case "mla":
            tensors = [memory(TOKENS, width) for _ in layers]
        case _:
            tensors = [[memory(TOKENS, 1, width // 2) for _ in layers] for _ in "kv"]
    layout = {"attention": "separate_blocks", "one_buffer": "rows"}.get(form, form)
    registered = client.register(tensors, layout=layout, model=f"{name} {form}", page_tokens=TOKENS, dtype="none")
    return Cache(registered, pages, nbytes if form == "rows" else TOKENS * width * len(layers))


def cpu_times(rounds: int, *actions: Callable[[], object]) -> list[list[float]]:
    """Returns the CPU seconds of this process in each action and round. They run in turn."""
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds):
        for action, taken in zip(actions, times, strict=True):
            began = time.process_time()
            action()
            taken.append(time.process_time() - began)
    return times


def stores(cache: Cache) -> Callable[[], None]:
    """Returns a function that stores new pages, from blocks that no call before has copied for long."""
    tables = itertools.cycle(cache.tables)

    def store() -> None:
        assert cache.registered.store(cache.prompt(), next(tables)).stored == cache.pages

    return store


def loads(cache: Cache) -> Callable[[], None]:
    """Returns a function that loads pages, in turn all that fill the blocks."""
    stored = [(cache.prompt(), table) for table in cache.tables]
    for prompt, table in stored:
        assert cache.registered.store(prompt, table).stored == cache.pages
    turns = itertools.cycle(stored)

    def load() -> None:
        prompt, table = next(turns)
        with cache.registered.match(prompt) as match:
            assert cache.registered.load(match, table) == cache.pages * TOKENS

    return load


def matches(cache: Cache) -> Callable[[], None]:
    """Returns a function that matches and releases a prompt many times."""
    prompt, table = cache.prompt(), list(range(cache.pages))
    assert cache.registered.store(prompt, table).stored == cache.pages
    keys = cache.registered.keys(prompt)

    def match() -> None:
        for _ in range(MATCHES):
            with cache.registered.match(keys) as found:
                assert found.tokens == cache.pages * TOKENS

    return match


def measure_family(client: Client, name: str, layers: Layers) -> Iterator[Result]:
    """Measures one family of models."""
    caches = {form: cache_of(client, name, form, layers) for form in FORMS}
    for what, make in (("match", matches), ("store", stores), ("load", loads)):
        times = dict(zip(FORMS, cpu_times(ROUNDS, *map(make, caches.values())), strict=True))
        yield from (_compared(f"{what}_{name}", caches, times, *pair) for pair in PAIRS)
    for cache in caches.values():
        cache.registered.close(10)


def _compared(
    name: str, caches: Mapping[str, Cache], times: Mapping[str, list[float]], one: str, other: str, goal: Goal
) -> Result:
    """Returns the median ratio of the times of two forms, of a match by page, otherwise by byte."""
    match = name.startswith("match")
    units = {form: MATCHES * cache.pages if match else cache.nbytes * cache.pages for form, cache in caches.items()}
    ratios = (ours / theirs for ours, theirs in zip(times[one], times[other], strict=True))
    ratio = statistics.median(ratios) * units[other] / units[one]
    took = statistics.median(times[other]) / units[other] * 1e9
    against = f"{took:.3g} ns a {'page' if match else 'byte'}"
    return Result(f"{name}_{one}_over_{other}", ratio, "x", against, goal)


def measure() -> dict[str, Any]:
    """Measures all families with one thread, whose CPU time is that of the copies."""
    with Stage("--arena-size", f"{ARENA_MIB}MiB") as stage, Client(stage.socket, timeout=60, threads=1) as client:
        assert client.wait_attached(600)
        settle()
        rows = [row_of(one) for name, layers in FAMILIES.items() for one in measure_family(client, name, layers)]
    return {"measured": True, "device": f"{machine()}, load {os.getloadavg()[1]:.0f}", "results": rows}


if __name__ == "__main__":
    run_command(__doc__, RESULTS, measure)
