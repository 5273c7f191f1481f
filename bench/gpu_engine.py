"""Measures what a model gains by loading a prompt instead of computing it, and what copies cost another request.

The model is a Llama in plain torch with random weights and a paged cache that it registers with Client.register(). A
prompt is computed, stored, and loaded into other blocks, all layers at once and layer by layer, with the model's CUDA
graphs off and on. The logits must be equal bit by bit. Another request decodes beside loads, stores and a prefill.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import msgspec
import numpy as np
import torch

from daemon_setup import Stage
from decoding import Decoding
from gpu_command import main
from measure import REPORTED, Result, at_least, at_most
from paged_model import ModelSize, PagedModel, Pass
from pagetier.client import Client, LoadHandle, StoreHandle
from pagetier.client.cli.calibrate.measure import Scene, begin_plain
from pagetier.kernels.device import Direction

LONG_S: Final = 30.0
MIB: Final = 1 << 20


class Scale(msgspec.Struct, frozen=True):
    """The amount of work. `prompt` tokens are cached, `tail` more are computed after a load.

    Attributes:
        device: The device's name in torch.
        model: The size of the model.
        prompt: The tokens that are stored and loaded, whole pages.
        tail: The tokens that follow, whole blocks.
        chunk: The tokens of one pass of the prefill.
        page_tokens: The tokens of a page.
        context: The most tokens of the request that decodes.
        steps: The decoding steps of one round.
        rounds: The rounds that count.
    """

    device: str = "cuda:0"
    model: ModelSize = ModelSize()
    prompt: int = 32_768
    tail: int = 128
    chunk: int = 8192
    page_tokens: int = 256
    context: int = 4096
    steps: int = 40
    rounds: int = 5

    @property
    def prompt_bytes(self) -> int:
        """The bytes of the prompt's pages."""
        return self.prompt * self.model.token_bytes


TINY: Final = Scale("cpu", ModelSize(2, 2, 16, 64, 500), 256, 16, 128, 64, 64, steps=4, rounds=1)


class Engine:
    """The model, its registered cache, and one prompt in two places: where it is computed and where it is loaded."""

    def __init__(self, client: Client, scale: Scale) -> None:
        self.client, self.scale = client, scale
        block, total = scale.model.block_tokens, scale.prompt + scale.tail
        counts = [total // block, total // block, scale.context // block]
        self.model = PagedModel(scale.model, sum(counts), max(total, scale.context), scale.device)
        self.computed_in, self.loaded_into, theirs = _scattered(counts)
        self.cache = client.register(
            self.model.cache, layout="flash_attention", model="bench/paged", page_tokens=scale.page_tokens
        )
        rng = np.random.default_rng(3)
        self.prompt = rng.integers(0, scale.model.vocabulary, total)
        self.tokens = torch.from_numpy(self.prompt).to(scale.device)
        self.tail = self.tail_in(self.loaded_into)
        self.decoding = Decoding(self.model, theirs.to(scale.device), scale.context)

    def tail_in(self, table: Any) -> Pass:
        """Returns the pass over the tail of the prompt whose blocks these are."""
        first = self.scale.prompt
        return Pass(self.model, self.model.step(self.tokens[first:], first, table.to(self.scale.device)))

    def prefill_passes(self) -> list[Pass]:
        """Returns the passes that compute the prompt without its tail."""
        table, chunk = self.computed_in.to(self.scale.device), self.scale.chunk
        return [
            Pass(self.model, self.model.step(self.tokens[first : first + chunk], first, table))
            for first in range(0, self.scale.prompt, chunk)
        ]

    def begin_load(self) -> LoadHandle:
        """Looks the prompt up and starts to load it."""
        with self.cache.match(self.prompt[: self.scale.prompt]) as match:
            load = self.cache.async_load(match, self.loaded_into.numpy())
        assert load.pages * self.scale.page_tokens == self.scale.prompt, "the prompt is not cached"
        return load

    def begin_store(self, salt: int) -> StoreHandle:
        """Starts to store the bytes of the prompt under the name of another prompt."""
        other = (self.prompt[: self.scale.prompt] + salt) % self.scale.model.vocabulary
        return self.cache.async_store(other, self.computed_in.numpy())

    def wait_for(self, load: LoadHandle, layer: int) -> None:
        """Makes the model wait for a layer; on the CPU, this thread."""
        if self.on_gpu:
            waits = load.make_stream_wait(torch.cuda.current_stream(), layer, LONG_S)
        else:
            waits = load.wait(layer, LONG_S)
        assert waits, f"layer {layer}: {load.failed or 'not loaded in time'}"

    def forget(self) -> None:
        """Overwrites the blocks into which the prompt is loaded."""
        blocks = self.loaded_into.to(self.scale.device)
        for layer in self.model.cache:
            layer[:, blocks] = 1.0
        self.settle()

    def settle(self) -> None:
        """Waits for the device."""
        if self.on_gpu:
            torch.cuda.synchronize()

    @property
    def on_gpu(self) -> bool:
        """Whether the model is on a GPU."""
        return self.scale.device != "cpu"


def _scattered(counts: Sequence[int]) -> list[Any]:
    """Returns disjoint tables of as many blocks, in random order."""
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(5))
    return list(order.split(list(counts)))


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
    """Runs everything with a daemon whose arena has room for two prompts and a bit."""
    arena = 5 * scale.prompt_bytes // 2 + 64 * MIB
    with Stage("--arena-size", f"{arena >> 20}MiB") as stage, stage.client() as client:
        began = time.perf_counter()
        engine = Engine(client, scale)
        if engine.on_gpu:
            yield _pinned(client, began, arena)
        prefill_s, expected = prefilled(engine)
        size = f"{scale.model.parameters / 1e6:.0f} M parameters, {scale.prompt + scale.tail} tokens"
        yield Result("ttft_computed", 1e3 * prefill_s, "ms", size)
        stored = engine.cache.store(engine.prompt[: scale.prompt], engine.computed_in.numpy())
        assert stored.stored * scale.page_tokens == scale.prompt, stored
        for graphs in ("off", "on") if engine.on_gpu else ("off",):
            if graphs == "on":
                engine.tail.capture()
                engine.decoding.capture()
            yield from first_tokens(engine, prefill_s, expected, graphs)
            yield from beside(engine, graphs)
        yield from copies(engine)


def _pinned(client: Client, began: float, arena: int) -> Result:
    while client.arenas.progress < 1.0 and time.perf_counter() < began + 60:
        time.sleep(0.01)
    against = f"{arena / 1e9:.1f} GB, {100 * client.arenas.progress:.0f} % pinned, with the model's start"
    return Result("arena_pinned", time.perf_counter() - began, "s", against)


if __name__ == "__main__":
    main(__doc__, lambda: measure(Scale()), lambda: measure(TINY))
