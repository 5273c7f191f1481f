"""Measures the CPU time that a connector takes where nothing hits: by step, and by page."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from daemon_setup import Stage, settle
from measure import REPORTED, Goal, Result, at_most
from serving.compare import ALONE, NATIVE, OURS, native_transfer, our_transfer
from serving.connector_clock import ProcessorTime
from serving.engine import BLOCK, Engine
from serving.model import VOCABULARY, llama

REQUESTS, TOKENS = 16, 512
PAGES = REQUESTS * TOKENS // BLOCK  # the smallest block of vLLM's attention on CPUs is a page of 32 tokens
ANSWER = BLOCK - 2  # with a prompt of one token it completes no page
SMALLEST = {"hidden": 64, "layers": 1, "length": 2048}  # of a page of 8 KiB the copy takes next to no time

Taken = dict[str, list[ProcessorTime]]
"""By engine, the CPU time of each round."""


def measure(rounds: int, minutes: float) -> Iterator[Result]:
    """Yields the medians of `rounds` rounds, or of as many as the time allowed."""
    ends, by_page, by_step = time.monotonic() + 60 * minutes, Taken(), Taken()
    with ExitStack() as stack:
        engines = _engines(stack)
        for number in range(rounds + 1):
            for engine in engines:
                pages, steps = _round(engine, number)
                if number:  # the first round warms up
                    by_page.setdefault(engine.name, []).append(pages)
                    by_step.setdefault(engine.name, []).append(steps)
            if number and time.monotonic() > ends:
                break
    yield from _results(by_page, by_step)


def _engines(stack: ExitStack) -> list[Engine]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pagetier-bench-")))
    stage = stack.enter_context(Stage("--arena-size", "1GiB", "--set", "arena.frame_size=8KiB"))
    stage.client().close()
    model, engines = llama(folder / "model", **SMALLEST), []
    for name, transfer in {ALONE: None, NATIVE: native_transfer(), OURS: our_transfer(stage)}.items():
        engine = Engine(name, model, transfer)
        stack.callback(engine.stop)
        engine.ready()
        engines.append(engine)
    return engines


def _round(engine: Engine, number: int) -> tuple[ProcessorTime, ProcessorTime]:
    """Returns the time for new prompts of 32 pages with one token as an answer, and for answers without a page."""
    chance = random.Random(number)
    prompts = [[chance.randrange(10, VOCABULARY) for _ in range(TOKENS)] for _ in range(REQUESTS)]
    before = engine.processor_time()
    engine.run(prompts)
    settle()  # stores end after the answer
    between = engine.processor_time()
    engine.run([prompt[:1] for prompt in prompts], ANSWER)
    return between.since(before), engine.processor_time().since(between)


def _results(by_page: Taken, by_step: Taken) -> Iterator[Result]:
    for side, goal in (("scheduler", at_most(5)), ("worker", at_most(20))):
        medians = {name: _median([getattr(one, side) / PAGES for one in taken]) for name, taken in by_page.items()}
        yield _result(f"cpu_of_{side}_by_page", medians, goal)
    for side in ("scheduler", "worker", "process"):
        medians = {name: _median([getattr(one, side) / one.steps for one in taken]) for name, taken in by_step.items()}
        yield _result(f"cpu_of_{side}_by_step", medians, REPORTED if side == "process" else at_most(100))


def _median(nanoseconds: list[float]) -> float:
    return statistics.median(nanoseconds) / 1e3


def _result(name: str, medians: dict[str, float], goal: Goal) -> Result:
    others = "; ".join(f"{who} {median:.1f} us" for who, median in medians.items() if who != OURS)
    return Result(name, medians[OURS], "us", others, goal)
