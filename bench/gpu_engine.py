"""Measures what a model gains by loading a prompt instead of computing it, and what copies cost another request.

The model is a Llama in plain torch with random weights and a paged cache that it registers with Client.register(). A
prompt is computed, stored, and loaded into other blocks, all layers at once and layer by layer, with the model's CUDA
graphs off and on. The logits must be equal bit by bit. Another request decodes beside loads, stores and a prefill.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from daemon_setup import Stage
from gpu_command import main
from loading_engine import LONG_S, MIB, TINY, Engine, Scale, fitted
from measure import REPORTED, Result, at_least, at_most
from pagetier.client import Client
from pagetier.client.cli.calibrate.measure import Scene, begin_plain
from pagetier.kernels.device import Direction

# --- time to first token --------------------------------------------------------------------------------------


def first_token(run: Callable[[], Any]) -> tuple[float, Any]:
    """Returns the seconds until the first token is on the host, and a copy of the logits that chose it."""
    began = time.perf_counter()
    logits = run()
    int(logits.argmax())
    return time.perf_counter() - began, logits.clone()


def all_at_once(engine: Engine) -> Any:
    """Loads all layers, then computes the tail."""
    load = engine.begin_load()
    engine.wait_for(load, load.layers - 1)
    return engine.tail.run()


def layer_by_layer(engine: Engine) -> Any:
    """Computes each layer of the tail as soon as that layer is loaded."""
    load = engine.begin_load()
    return engine.tail.run(lambda layer: engine.wait_for(load, layer))


def prefilled(engine: Engine) -> tuple[float, Any]:
    """Returns the median seconds of computing the whole prompt, and its logits."""
    passes = [*engine.prefill_passes(), engine.tail_in(engine.computed_in)]

    def prefill() -> Any:
        return [each.run() for each in passes][-1]

    runs = [first_token(prefill) for _ in range(engine.scale.rounds + 1)][1:]
    return statistics.median(seconds for seconds, _ in runs), runs[-1][1]


def first_tokens(engine: Engine, prefill_s: float, expected: Any, graphs: str) -> Iterator[Result]:
    """Measures the time to the first token from the arena, and compares the logits with the computed ones."""
    equal, medians = 0, []
    ways = {"all_at_once": all_at_once, "layer_by_layer": layer_by_layer}
    for name, way in ways.items():
        seconds = []
        for _ in range(engine.scale.rounds + 1):
            engine.forget()
            taken, logits = first_token(lambda way=way: way(engine))  # type: ignore[misc]
            seconds.append(taken)
            equal += torch.equal(logits, expected)
        medians.append(statistics.median(seconds[1:]))
        against = f"computing it takes {1e3 * prefill_s:.1f} ms, {prefill_s / medians[-1]:.1f} times as long"
        yield Result(f"ttft_loaded_{name}_graphs_{graphs}", 1e3 * medians[-1], "ms", against)
    runs = len(ways) * (engine.scale.rounds + 1)
    against = f"{equal} of {runs} loads gave the logits of the computed prompt, bit by bit"
    yield Result(f"logits_equal_graphs_{graphs}", equal / runs, "of loads", against, at_least(1.0))


# --- copies ---------------------------------------------------------------------------------------------------


def copies(engine: Engine) -> Iterator[Result]:
    """Measures loads and stores of the whole prompt over a plain pinned copy, and the first layer of a load."""
    times = [load_times(engine) for _ in range(engine.scale.rounds + 1)][1:]
    first, last = (statistics.median(each) for each in zip(*times, strict=True))
    layers = engine.scale.model.layers
    against = f"{1e3 * first:.2f} ms of {1e3 * last:.2f} ms, {layers} layers"
    yield Result("first_layer_over_its_share", first / (last / layers), "x", against, at_most(1.3))
    yield _over_plain(engine, Direction.LOAD, last)
    yield _over_plain(engine, Direction.STORE, statistics.median(stored_seconds(engine)))


def load_times(engine: Engine) -> tuple[float, float]:
    """Returns the seconds from the look-up until the first layer and all layers are in the cache."""
    began = time.perf_counter()
    load = engine.begin_load()
    times = []
    for layer in (0, load.layers - 1):
        assert load.wait(layer, LONG_S), load.failed
        times.append(time.perf_counter() - began)
    assert load.wait_ended(LONG_S)
    return times[0], times[1]


def stored_seconds(engine: Engine) -> list[float]:
    """Returns the seconds of some stores."""
    seconds = []
    for salt in range(1, engine.scale.rounds + 1):
        engine.settle()
        began = time.perf_counter()
        result = engine.begin_store(salt).wait(LONG_S)
        assert result.stored, result
        seconds.append((time.perf_counter() - began) * engine.scale.prompt / result.stored / engine.scale.page_tokens)
    return seconds


def _over_plain(engine: Engine, direction: Direction, seconds: float) -> Result:
    """Compares the rate of a copy with that of one contiguous pinned copy."""
    nbytes = engine.scale.prompt_bytes
    ours, plain = nbytes / seconds / 1e9, plain_rate(engine, direction)
    run = 2 * engine.scale.model.block_tokens * engine.scale.model.hidden
    against = f"{ours:.1f} GB/s in runs of {run >> 10} KiB, one plain copy {plain:.1f}"
    return Result(f"{direction.value}_over_plain", ours / plain, "x", against, at_least(0.85))


def plain_rate(engine: Engine, direction: Direction) -> float:
    """Returns the GB/s of one contiguous copy between the device and pinned memory."""
    scene, times = Scene(engine.scale.device, 256 * MIB if engine.on_gpu else 8 * MIB), []
    for _ in range(engine.scale.rounds + 1):
        began = time.perf_counter()
        begin_plain(scene, direction)
        scene.settle()
        times.append(time.perf_counter() - began)
    return scene.nbytes / statistics.median(times[1:]) / 1e9


# --- another request ------------------------------------------------------------------------------------------


def beside(engine: Engine, graphs: str) -> Iterator[Result]:
    """Measures how much a request that decodes is slowed by continuous loads, stores and prefills of another one."""
    others = {"loads": loading(engine), "stores": storing(engine), "prefill": prefilling(engine)}
    for name, other in others.items():
        alone, slowed = [], []
        for _ in range(engine.scale.rounds):
            alone += engine.decoding.seconds(engine.scale.steps)
            with repeated(other, engine):
                slowed += engine.decoding.seconds(engine.scale.steps)
        each = statistics.median(alone)
        against = f"{1e3 * each:.3f} ms a token alone, {1e3 * statistics.median(slowed):.3f} ms beside"
        goal = REPORTED if name == "prefill" else at_most(3.0)
        slower = 100 * (statistics.median(slowed) / each - 1)
        yield Result(f"decoding_slowed_by_{name}_graphs_{graphs}", slower, "%", against, goal)


def loading(engine: Engine) -> Callable[[], object]:
    """Returns a function that loads the prompt once."""
    return lambda: engine.begin_load().wait_ended(LONG_S)


def storing(engine: Engine) -> Callable[[], object]:
    """Returns a function that stores another prompt with each call."""
    salts = iter(range(100, 1 << 20))
    return lambda: engine.begin_store(next(salts)).wait(LONG_S)


def prefilling(engine: Engine) -> Callable[[], object]:
    """Returns a function that computes the prompt without its tail."""
    passes = engine.prefill_passes()

    def prefill() -> None:
        for each in passes:
            each.run()
        if engine.on_gpu:
            torch.cuda.current_stream().synchronize()

    return prefill


@contextmanager
def repeated(work: Callable[[], object], engine: Engine) -> Iterator[None]:
    """Repeats some work on a thread and a stream of its own while the context lasts."""
    over, begun = threading.Event(), threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()) if engine.on_gpu else nullcontext():
                while not over.is_set():
                    begun.set()
                    work()
        except (RuntimeError, AssertionError, ValueError) as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait(LONG_S)
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]


# --- the command ----------------------------------------------------------------------------------------------


def measure(scale: Scale) -> Iterator[Result]:
    """Runs everything with a daemon of its own."""
    with Stage("--arena-size", f"{scale.arena_bytes // MIB}MiB") as stage, stage.client() as client:
        began = time.perf_counter()
        engine = Engine(client, scale)
        if engine.on_gpu:
            yield _pinned(client, began, scale.arena_bytes)
        prefill_s, expected = prefilled(engine)
        size = f"{scale.model.parameters / 1e6:.0f} M parameters, {scale.prompt + scale.tail} tokens"
        yield Result("ttft_computed", 1e3 * prefill_s, "ms", size)
        stored = engine.cache.store(engine.prompt[: scale.prompt], engine.computed_in.numpy())
        assert stored.stored * scale.page_tokens == scale.prompt, stored
        with engine.cache.match(engine.prompt[: scale.prompt]):  # the prompts of other stores must not evict this one
            for graphs in ("off", "on") if engine.on_gpu else ("off",):
                if graphs == "on":
                    engine.tail.capture()
                    engine.decoding.capture()
                yield from first_tokens(engine, prefill_s, expected, graphs)
                yield from beside(engine, graphs)
            yield from copies(engine)


def _pinned(client: Client, began: float, arena: int) -> Result:
    while client.attachment.arenas.progress < 1.0 and time.perf_counter() < began + 60:
        time.sleep(0.01)
    against = f"{arena / 1e9:.1f} GB, {100 * client.attachment.arenas.progress:.0f} % pinned, with the model's start"
    return Result("arena_pinned", time.perf_counter() - began, "s", against)


if __name__ == "__main__":
    main(__doc__, lambda: measure(fitted(Scale())), lambda: measure(TINY))
