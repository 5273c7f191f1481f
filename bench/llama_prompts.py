"""Measures what the prompt cache of llama.cpp costs without a hit, and what a hit costs beside a copy of its bytes.

MODEL names a GGUF file, and TOKENS the length of the prompt; by default random weights compute 2,048 tokens. All times
are of CPUs, and all ratios are from one run.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from daemon_setup import Stage
from measure import REPORTED, Result, at_most, main

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/harness"))

from llama_driver import Context, Model, Tokens
from pagetier.client import Client
from pagetier.client.adapters import GroupKeys
from pagetier.client.engines.llama_cpp import PromptCache
from pagetier.client.engines.llama_cpp.context import LlamaContext, State
from pagetier.client.engines.llama_cpp.library import Libllama
from pagetier.client.engines.llama_cpp.paged_state import PagedState
from random_gguf import write_gemma3

UBATCH: Final = 512
ROUNDS: Final = 15
USERS: Final = 3  # the prompt's sequence, one for hits, one for what llama.cpp does alone
HITS, ALONE = 1, 2


class Prefill(msgspec.Struct, frozen=True):
    """CPU seconds of a prompt without a hit: of llama.cpp, and of the cache."""

    computed: float
    cache: float


def cpu_of(action: Callable[[], object]) -> float:
    """Returns the CPU seconds that one call takes, in all threads."""
    began = time.process_time()
    action()
    return time.process_time() - began


def prefill(context: Context, cache: PromptCache, prompt: Tokens) -> Prefill:
    """Computes a prompt that is not cached, and stores it."""
    computed, began = 0.0, time.process_time()
    for batch in cache.prefill(prompt):
        computed += cpu_of(lambda: context.decode(prompt[batch.start : batch.stop], batch.start))  # noqa: B023
    return Prefill(computed, time.process_time() - began - computed)


def states_of_hit(state: PagedState, cache: PromptCache, tokens: int) -> list[State]:
    """Returns what llama.cpp takes for a hit: each page, without those parts that the hit does not need."""
    needed = [one.group.pages(tokens) for one in cache.groups]
    states = []
    for page in needed[0]:
        base, part = state.read(0, page)
        part = part if page in needed[-1] else state.empty_part
        states.append(np.concatenate([base, part]))
    return states


def put_back(state: PagedState, states: list[State]) -> None:
    """Does what llama.cpp does for a hit."""
    state.context.remove(ALONE)
    assert all(state.write(ALONE, page) for page in states)
    state.end_write()


def medians(*actions: Callable[[], object]) -> list[float]:
    """Returns the median CPU seconds of each action; they run in turn."""
    times = [[cpu_of(action) for action in actions] for _ in range(ROUNDS)]
    return [statistics.median(taken) for taken in zip(*times, strict=True)]


def results(context: Context, cache: PromptCache, prompt: Tokens) -> Iterator[Result]:
    """Yields all numbers of a prompt."""
    without = prefill(context, cache, prompt)
    share = 100 * without.cache / without.computed
    yield Result("cache without a hit", share, "%", f"{without.computed:.1f} s of prefill", at_most(1))
    tokens = (len(prompt) - 1) // UBATCH * UBATCH
    state = PagedState(LlamaContext(Libllama(context.lib), context.pointer), UBATCH)
    states = states_of_hit(state, cache, tokens)
    source = np.concatenate(states)
    target = np.ones_like(source)

    def hit() -> None:
        assert cache.load(prompt, HITS) == tokens

    loaded, alone, copied = medians(hit, lambda: put_back(state, states), lambda: np.copyto(target, source))
    size = f"{source.nbytes / 1e6:.1f} MB in {copied * 1e3:.2f} ms"
    yield Result("hit", loaded / copied, "x memcpy", size, at_most(3))
    yield Result("llama.cpp's own share of it", alone / copied, "x memcpy", size, REPORTED)
    yield Result("pagetier's share of it", (loaded - alone) / copied, "x memcpy", size, REPORTED)
    yield Result("hit", without.computed / loaded, "x faster", f"{tokens:,} tokens computed", REPORTED)


def looked_up(client: Client, cache: PromptCache, prompt: Tokens) -> float:
    """Returns the CPU seconds of hashing a prompt and finding its pages."""

    def find() -> None:
        keys = [GroupKeys(one.group, one.namespace.keys(prompt)) for one in cache.groups]
        client.find_groups(keys).release()

    return medians(find)[0]


def measure() -> Iterator[Result]:
    """Yields all numbers."""
    tokens = int(os.environ.get("TOKENS", "2048")) + 1
    prompt = np.random.default_rng(1).integers(3, 500, tokens).astype(np.int32)
    arena = ("--arena-size", "1GiB", "--set", "arena.frame_size=64KiB")
    with tempfile.TemporaryDirectory() as folder, Stage(*arena) as stage, stage.client() as client:
        path = Path(os.environ.get("MODEL") or write_gemma3(Path(folder) / "random.gguf"))
        sizes: dict[str, Any] = {"n_ctx": USERS * (tokens + UBATCH), "n_batch": UBATCH, "n_ubatch": UBATCH}
        with Model(path) as model, Context(model, users=USERS, **sizes) as context:
            own: dict[str, Any] = {"client": client, "page_tokens": UBATCH}
            cache = PromptCache(context.pointer, library=model.lib, model_files=[path], **own)
            yield from results(context, cache, prompt)
            found = looked_up(client, cache, prompt)
            yield Result("keys and lookup", found * 1e3, "ms", f"{tokens - 1:,} tokens", REPORTED)


if __name__ == "__main__":
    main("Prompts of llama.cpp", measure)
