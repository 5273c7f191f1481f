"""Measures how fast copies to and from a GPU are, and how much they slow a model.

Each copy path, and the one that calibration chooses, is compared with one large plain copy of pinned memory. A matrix
product runs beside the copies, and the time until the first layer of a load is usable is measured.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

import msgspec
import torch

from background_copies import copying
from gpu_command import main
from measure import REPORTED, Goal, Result, at_least, at_most
from pagetier.client.cli.calibrate.measure import (
    MIB,
    CopyBatch,
    Scene,
    Streams,
    Timing,
    begin_plain,
    do,
    gpu_streams,
    speeds_of,
)
from pagetier.client.cli.calibrate.measure import median_seconds as medians
from pagetier.client.cli.calibrate.thresholds import COPY_PATHS, thresholds_of
from pagetier.kernels.config.copy_settings import CopySettings, PathName, Thresholds
from pagetier.kernels.device import Copy, Direction, Event, Stream

KIB: Final = 1 << 10
GOALS: Final[dict[int, Goal]] = {16 * KIB: at_least(0.85), 256 * KIB: at_least(0.95), 2 * MIB: at_least(0.95)}
"""For the chosen path in one direction, by run length; the other lengths are only reported."""
BOTH_GOALS: Final[dict[int, Goal]] = {256 * KIB: at_least(0.9), 2 * MIB: at_least(0.9)}
"""For the chosen path in both directions at once, over the sum of the two plain copies."""

Begin: TypeAlias = Callable[[], object]


class Scale(msgspec.Struct, frozen=True):
    """The amount of work. The defaults are the benchmark's own; smaller numbers are for a trial."""

    total_bytes: int = 256 * MIB
    chunk_bytes: int = 64 * MIB
    runs: tuple[int, ...] = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 2 * MIB)
    run_pair: tuple[int, int] = (16 * KIB, 256 * KIB)  # beside a model, and layer by layer
    rounds: int = 9
    side: int = 8192  # side length of the matrices
    products: int = 30


class Bench:
    """All measurements on one device. Stores and loads have separate memory, so that both can run at once."""

    def __init__(self, device: str, streams: Streams, scale: Scale) -> None:
        self.device, self.streams, self.scale = device, streams, scale
        self._streams: dict[tuple[PathName, Direction], Stream] = {}
        self.scenes = {direction: Scene(device, scale.total_bytes) for direction in Direction}

    def work(self, direction: Direction, run: int, path: PathName) -> CopyBatch:
        """Returns the work of a direction's whole memory, in chunks, on a stream of its own."""
        return self.work_on(self.scenes[direction], direction, run, path)

    def work_on(self, scene: Scene, direction: Direction, run: int, path: PathName) -> CopyBatch:
        """Returns work on any memory. The same path and direction share a stream."""
        if (path, direction) not in self._streams:
            self._streams[path, direction] = self.streams(path, direction)
        return CopyBatch(self._streams[path, direction], scene.copies(direction, run, self.scale.chunk_bytes))

    def settle(self) -> None:
        """Waits for everything on the device."""
        self.scenes[Direction.LOAD].settle()

    def plain(self, directions: Sequence[Direction]) -> None:
        """Runs one large copy in each direction, at once, to the end."""
        for direction in directions:
            with self._side_stream():
                begin_plain(self.scenes[direction], direction)
        self.settle()

    def _side_stream(self) -> Any:
        return torch.cuda.stream(torch.cuda.Stream(self.device)) if self.device != "cpu" else nullcontext()


def thresholds(bench: Bench) -> dict[Direction, Thresholds]:
    """Returns the thresholds that `pagetier-bench calibrate` finds."""
    scale = bench.scale
    timing = Timing(scale.total_bytes, scale.chunk_bytes, rounds=3, runs=scale.runs)
    return {
        direction: thresholds_of(speeds_of(bench.scenes[direction], bench.streams, direction, timing))
        for direction in Direction
    }


def verify(bench: Bench) -> None:
    """Verifies that every path and length stores the same pages and restores a poisoned cache."""
    scene, before = bench.scenes[Direction.LOAD], bench.scenes[Direction.LOAD].cache.clone()
    for run in bench.scale.runs:
        pages = None
        for path in COPY_PATHS:
            scene.arena.zero_()
            do(bench.work_on(scene, Direction.STORE, run, path))
            pages = scene.arena.clone() if pages is None else pages
            scene.cache.fill_(0xA5)
            bench.settle()
            do(bench.work_on(scene, Direction.LOAD, run, path))
            assert torch.equal(scene.arena, pages), f"{path}: different pages, runs of {run}"
            assert torch.equal(scene.cache, before), f"{path}: different bytes were loaded, runs of {run}"


# --- over a plain copy ----------------------------------------------------------------------------------------


def over_plain(bench: Bench) -> Iterator[Result]:
    """Measures each path at each length, one direction and both at once, in turn with a plain copy of as many bytes."""
    for direction, run in product(Direction, bench.scale.runs):
        plain, *taken = _timed(bench, [direction], [[direction]], run)
        for path, seconds in zip(PATHS, taken, strict=True):
            goal = GOALS.get(run, REPORTED) if path == "auto" else REPORTED
            name = f"{direction.value}_{_label(path)}_{run // KIB}kib_over_plain"
            yield Result(name, plain / seconds, "x", _rates(bench, 1, seconds, plain), goal)
    for run in bench.scale.runs:
        yield from _both_over_sum(bench, run)


def _both_over_sum(bench: Bench, run: int) -> Iterator[Result]:
    """Compares the bytes a second of both directions at once with the sum of the two plain copies alone."""
    both = list(Direction)
    *alone, at_once, _, _, _, chosen = _timed(bench, both, [[both[0]], [both[1]], both], run)
    best = 2 / sum(1 / seconds for seconds in alone)  # the seconds of all bytes at the summed rates
    goal = BOTH_GOALS.get(run, REPORTED)
    against = _rates(bench, 2, chosen, best)
    yield Result(f"both_chosen_{run // KIB}kib_over_sum", best / chosen, "x", against, goal)
    plain = f"two plain copies at once, {_rates(bench, 2, at_once, best)}"
    yield Result(f"both_plain_{run // KIB}kib_over_sum", best / at_once, "x", plain)


PATHS: Final[tuple[PathName, ...]] = (*COPY_PATHS, "auto")


def _timed(
    bench: Bench, directions: Sequence[Direction], plain: Sequence[Sequence[Direction]], run: int
) -> list[float]:
    """Returns the seconds of each plain copy and then of each path, all taken in turn."""
    actions: list[Begin] = [partial(bench.plain, each) for each in plain]
    for path in PATHS:
        actions.append(partial(do, *(bench.work(direction, run, path) for direction in directions)))
    return medians(actions, bench.scale.rounds)


def _rates(bench: Bench, directions: int, seconds: float, plain: float) -> str:
    nbytes = bench.scale.total_bytes * directions
    return f"{nbytes / seconds / 1e9:.1f} GB/s, plain {nbytes / plain / 1e9:.1f}"


def _label(path: PathName) -> str:
    return "chosen" if path == "auto" else path


# --- beside a matrix product ----------------------------------------------------------------------------------


def beside_a_product(bench: Bench) -> Iterator[Result]:
    """Measures how much continuous copies slow matrix products, in turn with products alone."""
    scale, product_of = bench.scale, Product(bench)
    for direction, run in product(Direction, scale.run_pair):
        work = bench.work(direction, run, "auto")
        alone, beside = [], []
        for _ in range(scale.rounds):
            alone.append(product_of.seconds())
            with copying(work):
                beside.append(product_of.seconds())
        each = statistics.median(alone)
        slower = 100 * (statistics.median(beside) / each - 1)
        against = f"{1e3 * each / scale.products:.2f} ms a product alone, {scale.side} x {scale.side}, bf16"
        yield Result(f"{direction.value}_{run // KIB}kib_slows_product", slower, "%", against, at_most(3.0))


class Product:
    """Several products of two square matrices on torch's own stream, like a model."""

    def __init__(self, bench: Bench) -> None:
        side, self._count = bench.scale.side, bench.scale.products
        self._left, self._right = (torch.randn(side, side, device=bench.device).to(torch.bfloat16) for _ in range(2))
        self._out = torch.empty_like(self._left)
        self.seconds()

    def seconds(self) -> float:
        """Returns the seconds of all products."""
        began = time.perf_counter()
        for _ in range(self._count):
            torch.mm(self._left, self._right, out=self._out)
        if self._out.is_cuda:  # waits for this stream only
            torch.cuda.current_stream(self._out.device).synchronize()
        return time.perf_counter() - began


# --- layer by layer -------------------------------------------------------------------------------------------


def by_layer(bench: Bench) -> Iterator[Result]:
    """Measures the time until the first layer of a load is usable, relative to its share of the time of all layers."""
    for run in bench.scale.run_pair:
        (copy,) = bench.scenes[Direction.LOAD].copies(Direction.LOAD, run, bench.scale.total_bytes)
        stream = bench.streams("auto", Direction.LOAD)
        times = [layer_times(stream, copy) for _ in range(bench.scale.rounds + 1)][1:]
        first, last = (statistics.median(each) for each in zip(*times, strict=True))
        against = f"{1e3 * first:.2f} ms of {1e3 * last:.2f} ms, {len(copy.planes)} layers"
        share = last / len(copy.planes)
        yield Result(f"first_layer_{run // KIB}kib_over_its_share", first / share, "x", against, at_most(1.3))


def layer_times(stream: Stream, copy: Copy) -> tuple[float, float]:
    """Returns the seconds to the end of the first and last layer, each enqueued alone, as the copier does."""
    events: SimpleQueue[Event] = SimpleQueue()
    began = time.perf_counter()

    def enqueue() -> None:
        for plane in copy.planes:
            stream.enqueue(msgspec.structs.replace(copy, planes=range(plane, plane + 1)))
            events.put(stream.record())

    thread = threading.Thread(target=enqueue)
    thread.start()
    times = []
    for _ in copy.planes:
        event = events.get(timeout=60)
        while not event.done():
            time.sleep(0)
        times.append(time.perf_counter() - began)
    thread.join()
    return times[0], times[-1]


# --- the command ----------------------------------------------------------------------------------------------


def measure(bench: Bench) -> Iterator[Result]:
    """Runs all measurements."""
    verify(bench)
    for part in (over_plain, beside_a_product, by_layer):
        yield from part(bench)


def gpu_bench(scale: Scale) -> Bench:
    """Returns the benchmark on the first GPU, with the best thresholds for it."""
    plain = Bench("cuda:0", gpu_streams(0, CopySettings()), scale)
    found = thresholds(plain)
    settings = CopySettings(stores=found[Direction.STORE], loads=found[Direction.LOAD])
    return Bench("cuda:0", gpu_streams(0, settings), scale)


def measured() -> Iterator[Result]:
    """Measures on the first GPU."""
    yield from measure(gpu_bench(Scale()))


def rehearsed() -> Iterator[Result]:
    """Runs all measurements on a simulated GPU."""
    from simulated_gpu import FRAME, PAGE, RUNS, simulated_gpu, simulated_streams

    work = Scale(PAGE, PAGE, RUNS, (RUNS[0], RUNS[1]), rounds=1, side=64, products=2)
    with simulated_gpu():
        settings = CopySettings(staging=8 * FRAME)
        yield from measure(Bench("cpu", simulated_streams(0, settings), work))


if __name__ == "__main__":
    main(__doc__, measured, rehearsed)
