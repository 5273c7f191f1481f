"""Measures what an engine on the CPU loses by loading its cache while it computes, or before it computes.

The model is attention over the loaded keys and values, layer by layer, so that each layer needs its own bytes. It
computes on one thread; the copies have another one.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daemon_setup import Stage, settle
from measure import Result, at_most, machine, median_times, time_of
from pagetier.client import Client, Keys, LoadHandle, Namespace
from pagetier.client.adapters import AsyncCopier
from pagetier.kernels.host.host_device import HostDevice
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import SlotMap, slot_map
from pagetier.kernels.layout.transfer import PagedCache
from results_file import row_of, run_command

LAYERS, TOKENS, HEADS, WIDTH = 16, 2048, 8, 128
PAGE_TOKENS, BLOCK = 256, 16
LAYER_MIB = 2 * TOKENS * HEADS * WIDTH * 4 >> 20
LAYER_S = 5e-3  # of computing, at least
ROUNDS = 25
RESULTS = Path(__file__).parent / "results" / "overlap.json"
LONG_S = 30.0


class Model:
    """A model whose layers consist of attention of some queries over a paged cache."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self.cache = [torch.rand(2, TOKENS // BLOCK, BLOCK, HEADS, WIDTH) - 0.5 for _ in range(LAYERS)]
        layout = engine_layouts.kv_first(self.cache)
        self.paged = PagedCache(layout, PageLayout.of(layout, PAGE_TOKENS))
        self.slots: SlotMap = slot_map(np.arange(TOKENS // BLOCK), TOKENS // PAGE_TOKENS, PAGE_TOKENS, BLOCK)
        self.queries = torch.rand(8, HEADS * WIDTH) - 0.5
        while min(time_of(lambda: self.layer(self.queries, 0)) for _ in range(5)) < LAYER_S:
            self.queries = torch.cat([self.queries, self.queries])

    def layer(self, x: Any, number: int) -> Any:
        """Returns one layer's output."""
        k, v = self.cache[number].reshape(2, TOKENS, HEADS * WIDTH)
        return torch.softmax(x @ k.T, dim=1) @ v + x

    def run(self) -> Any:
        """Runs all layers."""
        x = self.queries
        for number in range(LAYERS):
            x = self.layer(x, number)
        return x

    def run_layer_by_layer(self, awaited: Callable[[int], bool]) -> Any:
        """Runs each layer when it is loaded."""
        x = self.queries
        for number in range(LAYERS):
            assert awaited(number)
            x = self.layer(x, number)
        return x


class Memcpy:
    """The best case: the C library's memcpy of as many bytes a layer, in a thread, with an event a layer."""

    def __init__(self) -> None:
        self._source, self._to = (np.ones((LAYERS, LAYER_MIB << 20), np.uint8) for _ in range(2))
        self._came = [threading.Event() for _ in range(LAYERS)]

    def begin(self) -> None:
        """Starts copying all layers."""
        for event in self._came:
            event.clear()
        threading.Thread(target=self._copy).start()

    def wait(self, layer: int) -> bool:
        """Waits until a layer is copied."""
        return self._came[layer].wait(LONG_S)

    def _copy(self) -> None:
        for layer, event in enumerate(self._came):
            ctypes.memmove(self._to[layer].ctypes.data, self._source[layer].ctypes.data, LAYER_MIB << 20)
            event.set()


class Engine:
    """A model whose cache is stored in the arena."""

    def __init__(self, client: Client) -> None:
        self.client, self.model, self.memcpy = client, Model(), Memcpy()
        self.copier = AsyncCopier(client, self.model.paged, HostDevice(1))
        space = Namespace(model="bench", dtype="float32", page_tokens=PAGE_TOKENS, layout=self.model.paged.page.layout)
        self.keys: Keys = space.keys(range(TOKENS))
        assert self.copier.store(self.keys, self.model.slots).wait(LONG_S).stored == len(self.keys)
        self.output = self.model.run()

    def begin(self) -> LoadHandle:
        """Starts loading all pages."""
        with self.client.match(self.keys) as match:
            load = self.copier.load(match, self.model.slots)
        assert load.pages == len(self.keys)
        return load

    def without(self) -> None:
        """Computes with a cache that is there."""
        self.model.run()

    def by_layer(self) -> None:
        """Computes while the cache is being loaded."""
        load = self.begin()
        self._check(self.model.run_layer_by_layer(lambda layer: load.wait(layer, LONG_S)))

    def beside_memcpy(self) -> None:
        """Computes while as many bytes are copied without pagetier."""
        self.memcpy.begin()
        self._check(self.model.run_layer_by_layer(self.memcpy.wait))

    def all_first(self) -> None:
        """Loads the cache, then computes."""
        self.loaded()
        self._check(self.model.run())

    def loaded(self) -> None:
        """Loads all layers."""
        assert self.begin().wait(LAYERS - 1, LONG_S)

    def first_loaded(self) -> None:
        """Waits for one layer; rest() waits for the others."""
        self.load = self.begin()
        assert self.load.wait(0, LONG_S)

    def rest(self) -> None:
        """Waits for the layers that first_loaded() left."""
        assert self.load.wait_ended(LONG_S)

    def _check(self, output: Any) -> None:
        assert torch.equal(output, self.output), "the loaded cache differs from the stored one"


def spoilt(engine: Engine) -> None:
    """Checks that a load that failed would be noticed."""
    for tensor in engine.model.cache:
        tensor.zero_()
    engine.by_layer()


def measure() -> Iterator[Result]:
    with Stage("--arena-size", "1GiB") as stage, stage.client() as client:
        settle()
        engine = Engine(client)
        for _ in range(3):
            spoilt(engine)
        yield from results(engine)
        assert engine.copier.close(LONG_S)


def results(engine: Engine) -> Iterator[Result]:
    alone, by_layer, plain, all_first, loading, first, _ = median_times(
        ROUNDS,
        *(engine.without, engine.by_layer, engine.beside_memcpy, engine.all_first),
        *(engine.loaded, engine.first_loaded, engine.rest),
    )
    note = f"{LAYERS} layers of {1e3 * alone / LAYERS:.1f} ms and {LAYER_MIB} MiB, medians of {ROUNDS} rounds"
    rate = f"loading alone: {1e3 * loading:.1f} ms, {LAYERS * LAYER_MIB / 1024 / loading:.1f} GiB/s"
    yield Result("overlap_lost_by_layer", by_layer / alone - 1, "of no load", note)
    yield Result(
        "overlap_lost_beside_memcpy", plain / alone - 1, "of no load", "memcpy of as many bytes in a thread, by layer"
    )
    yield Result("overlap_by_layer_over_memcpy", by_layer / plain, "x", "time with that memcpy", at_most(1.1))
    yield Result("overlap_lost_all_first", all_first / alone - 1, "of no load", note)
    yield Result("overlap_lost_by_layer_over_all_first", (by_layer - alone) / (all_first - alone), "x", note)
    yield Result("overlap_first_layer_over_all", first / loading, "x", rate)


def record() -> dict[str, Any]:
    device = f"{machine()}, torch {torch.__version__}"
    return {"measured": True, "device": device, "results": [row_of(result) for result in measure()]}


if __name__ == "__main__":
    run_command(__doc__, RESULTS, record)
