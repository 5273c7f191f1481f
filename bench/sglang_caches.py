"""Measures lookups and copies of SGLang's linker and storage backend on the CPU, each against a part of itself.

It runs where SGLang is installed, as `make test-engines` does in .engines, and says so elsewhere.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.util import find_spec
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from daemon_setup import Stage
from measure import Result, at_least, at_most, main, median_times

PAGES = 8192
PAGE = 16
ROUNDS = 21
MISSES = 1000
COPY_PAGES, COPY_TOKENS, LAYERS, HEADS, DIM = 16, 64, 16, 8, 128


def transfer(keys: list[str], slots: Any = None) -> Any:
    """Returns SGLang's transfer of full attention."""
    from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

    return PoolTransfer(name=PoolName.KV, keys=keys, device_indices=slots)


def linker_of(socket: Path, folder: Path, pool: Any, page: int) -> Any:
    """Returns a linker of one pool."""
    from sglang.srt.runtime_context import get_context

    from pagetier.client.engines.sglang import PagetierLinker
    from sglang_model import Spec, write_config

    model = write_config(folder / f"model-{page}", Spec(heads=pool.head_num))
    override = get_context().override_server_args(device="cpu", model_path=str(model), page_size=page)
    params = SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: pool),
        page_size=page,
        pp_size=1,
        attn_cp_size=1,
        is_eagle=False,
        mtp_draft_device_pools=(),
        sidecar_draft_device_pools=(),
        attn_tp_cache_group=None,
        tp_cache_group=None,
        enable_kv_cache_events=False,
    )
    extra = {"socket": str(socket), "weights": "bench", "flush": "keep"}
    with override as server:
        return PagetierLinker(server, params, extra_config=extra)


def pool_of(tokens: int, page: int, layers: int, heads: int, dim: int) -> Any:
    """Returns a pool of SGLang."""
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    return MHATokenToKVPool(tokens, page, torch.bfloat16, heads, dim, layers, "cpu", enable_memory_saver=False)


def store(linker: Any, keys: list[str], page: int) -> None:
    """Stores pages and waits for them."""
    import torch

    linker.offload([transfer(keys, torch.arange(page, page + len(keys) * page))])
    while not linker.num_completed_offloads():
        time.sleep(0.0002)
    assert linker.pop_completed_offload(), "a page was not stored"


def cpu_times(rounds: int, *actions: Callable[[], object]) -> list[float]:
    """Returns the median CPU seconds of this thread in each action. They run in turn."""
    times: list[list[float]] = [[] for _ in actions]
    for _, (action, taken) in product(range(rounds), list(zip(actions, times, strict=True))):
        began = time.thread_time()
        action()
        taken.append(time.thread_time() - began)
    return [statistics.median(taken) for taken in times]


def lookups(socket: Path, folder: Path) -> Iterator[Result]:
    """Measures lookups."""
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    linker = linker_of(socket, folder, pool_of(PAGES * PAGE, PAGE, 1, 1, 8), PAGE)
    key = RadixKey(array("q", np.random.default_rng(7).integers(0, 1 << 20, PAGES * PAGE).tolist()), extra_key=None)
    hashes = get_storage_hash_str(key, None, page_size=PAGE)
    store(linker, hashes, PAGE)

    def hash_only() -> Any:
        return get_storage_hash_str(key, None, page_size=PAGE)

    def look_up() -> None:
        assert linker.lookup("one", [transfer(hash_only())]) == [PAGES]

    look_up()
    alone, with_lookup = cpu_times(ROUNDS, hash_only, look_up)
    against = f"SGLang's hashing alone: {alone * 1e3:.2f} ms"
    yield Result("sglang_lookup_8192_over_hashing", with_lookup / alone, "x", against, at_most(1.6))
    missing, requests = [transfer(["00" * 32])], map(str, count())

    def look_up_many() -> None:
        for _ in range(MISSES):
            linker.lookup(next(requests), missing)

    (missed,) = cpu_times(ROUNDS, look_up_many)
    yield Result("sglang_lookup_miss_us", missed / MISSES * 1e6, "us", "one page that is not there", at_most(5))
    linker.close()


def copies(socket: Path, folder: Path) -> Iterator[Result]:
    """Measures offloads and loads against memcpy."""
    import torch

    tokens = COPY_PAGES * COPY_TOKENS
    pool = pool_of(tokens, COPY_TOKENS, LAYERS, HEADS, DIM)
    linker = linker_of(socket, folder, pool, COPY_TOKENS)
    batches = (
        [sha256(b"%d" % page).hexdigest() for page in range(first, first + COPY_PAGES)]
        for first in count(0, COPY_PAGES)
    )
    nbytes = tokens * LAYERS * HEADS * DIM * 2 * 2
    source, target = (np.ones(nbytes, np.uint8) for _ in range(2))
    slots = torch.arange(COPY_TOKENS, COPY_TOKENS + tokens)
    stored = next(batches)
    store(linker, stored, COPY_TOKENS)

    def load() -> None:
        assert linker.lookup("one", [transfer(stored)]) == [COPY_PAGES]
        assert linker.load("one", [transfer(stored, slots)])
        assert linker.finish_layer_wise_loading(linker.start_layer_wise_loading())

    memcpy, offload, loaded = median_times(
        ROUNDS, lambda: np.copyto(target, source), lambda: store(linker, next(batches), COPY_TOKENS), load
    )
    rate = f"{nbytes / 2**20:.0f} MiB, memcpy {nbytes / memcpy / 2**30:.2f} GiB/s"
    yield Result("sglang_offload_over_memcpy", memcpy / offload, "x", rate, at_least(0.8))
    yield Result("sglang_load_over_memcpy", memcpy / loaded, "x", rate, at_least(0.8))
    linker.close()


def measure() -> Iterator[Result]:
    """Yields all results."""
    if not find_spec("sglang"):
        raise SystemExit("SGLang is not installed beside this Python: run it with .engines/sglang-0.5.23/bin/python")
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "sglang"))
    import sglang_imports  # noqa: F401  before SGLang

    arguments = ("--arena-size", "3GiB", "--set", "arena.frame_size=64KiB")
    with Stage(*arguments) as stage, tempfile.TemporaryDirectory(prefix="pagetier-bench-") as folder:
        limits = Path(folder) / "copy.toml"
        limits.write_text('queue_limit = "60s"\nreserve_timeout = "30s"\n')  # no page is left out on a busy machine
        os.environ["PAGETIER_COPY_CONFIG"] = str(limits)
        stage.client().close()
        yield from copies(stage.socket, Path(folder))
        yield from lookups(stage.socket, Path(folder))


if __name__ == "__main__":
    main("SGLang's linker", measure)
