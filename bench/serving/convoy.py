"""Measures requests that arrive together: with one prefix that every cache has, with branches of it, with nothing.

The same with prompts that share more or less of a prefix, with a hybrid model, and with so few blocks that most
requests wait for room or are preempted. On a machine that others use only the CPU time, which is that of the engines'
processes, and the number of steps are certain.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from serving.compare import (
    ALONE,
    CACHING,
    EVERYONE,
    NATIVE,
    NO_OPTIONS,
    OURS,
    Contest,
    MissedError,
    contest,
    require_cached,
)
from serving.confidence import AHEAD, NO_CLAIM, Spread, ratios, spread
from serving.engine import BLOCK, Answer
from serving.model import Recipe, gemma, llama

REQUESTS = 50
PREFIX = 128 * BLOCK
TAIL = BLOCK - 1  # no page of its own
BRANCH = 32 * BLOCK
EIGHTH = PREFIX // 8
END = 8 * BLOCK  # what a prompt has of its own after an overlap of one to eight eighths of the prefix

ROOM = 128 + 9  # blocks: the prefix, one for each of eight requests, and the null block
FEW = 20
ANSWER = 40  # a request needs up to two more blocks for it

AGAIN = 7  # runs of each case in a round, because a round spends most of its time on storing


class Case(msgspec.Struct, frozen=True):
    """Prompts that arrive together.

    Attributes:
        name: The name of the case.
        prompts: The prompts.
        cached: The tokens that a connector has of each, or of all; None if they are not the same for both: after
            preemption, and with a window, where native offloading finds a page less of the first prompt.
        names: The engines that run it.
        tokens: The tokens of each answer.
    """

    name: str
    prompts: Sequence[list[int]]
    cached: int | Sequence[int] | None
    names: Sequence[str] = CACHING
    tokens: int = 1


class Run(msgspec.Struct, frozen=True):
    """The answer to the prompts of a case, and the CPU seconds of the engine's processes."""

    answer: Answer
    processor: float


Round = Iterator[tuple[str, str, Run]]
"""The case, the engine, and its run."""
Measured = dict[str, dict[str, list[Run]]]
"""By case and engine, all runs."""


class Part(msgspec.Struct, frozen=True):
    """A model, the options of all engines, and the rounds that they run."""

    round_of: Callable[[Contest], Round]
    recipe: Recipe = llama
    options: Mapping[str, Any] = NO_OPTIONS


def measure(rounds: int, minutes: float) -> Iterator[Spread]:
    """Yields the results of `rounds` rounds of each part, or of as many as its share of the time allowed."""
    parts = _parts()
    for part in parts:
        for case, runs_of in _measured(part, rounds, minutes / len(parts)).items():
            yield from _results(case, runs_of)


def _parts() -> Sequence[Part]:
    few_blocks = {"num_gpu_blocks_override": ROOM, "max_model_len": (ROOM - 1) * BLOCK}
    return Part(_round), Part(_round_of_hybrid, gemma), Part(_round_of_few_blocks, options=few_blocks)


def _measured(part: Part, rounds: int, minutes: float) -> Measured:
    ends, measured = time.monotonic() + 60 * minutes, Measured()
    with (
        tempfile.TemporaryDirectory(prefix="pagetier-bench-") as folder,
        contest(Path(folder), part.recipe, part.options) as engines,
    ):
        for runs in itertools.islice(_rounds(engines, part, spare=rounds // 4 + 2), rounds):
            for case, name, run in runs:
                measured.setdefault(case, {}).setdefault(name, []).append(run)
            if time.monotonic() > ends:
                break
    return measured


def _rounds(engines: Contest, part: Part, spare: int) -> Iterator[list[tuple[str, str, Run]]]:
    """Yields valid rounds. Skips a few in which a cache did not have what it should."""
    while True:
        try:
            yield [*part.round_of(engines)]
        except MissedError as error:
            if not spare:
                raise
            spare -= 1
            print(f"skipping a round: {error}", file=sys.stderr)


def _round(engines: Contest) -> Round:
    prefix = engines.prompt(PREFIX)
    one_prefix = Case("one_prefix", _after(engines, prefix, TAIL), PREFIX, EVERYONE)
    branched = _after(engines, prefix[: PREFIX // 2], BRANCH + 1)
    lengths = [(1 + at % 8) * EIGHTH for at in range(REQUESTS)]
    overlapping = [engines.prompt(length + END + 1, prefix[:length]) for length in lengths]
    distinct = _after(engines, [], BRANCH + 1)
    _store(engines, [prefix], branched, overlapping, distinct)
    for _ in range(AGAIN):
        yield from _run(engines, one_prefix)
        yield from _run(engines, Case("branches", branched, PREFIX // 2 + BRANCH))
        yield from _run(engines, Case("overlaps", overlapping, [length + END for length in lengths]))
        yield from _run(engines, Case("nothing_shared", distinct, BRANCH))
    engines.only_on_disk()
    yield from _run(engines, Case("one_prefix_on_disk", one_prefix.prompts, PREFIX, (ALONE, OURS)))
    engines.scene.wait_until_nothing_is_saved()


def _round_of_hybrid(engines: Contest) -> Round:
    prefix = engines.prompt(PREFIX)
    shared, branched = _after(engines, prefix, TAIL), _after(engines, prefix[: PREFIX // 2], BRANCH + 1)
    _store(engines, [prefix], branched)
    for _ in range(AGAIN):
        yield from _run(engines, Case("hybrid_one_prefix", shared, None, EVERYONE))
        yield from _run(engines, Case("hybrid_branches", branched, None))


def _round_of_few_blocks(engines: Contest) -> Round:
    prefix = engines.prompt(PREFIX)
    shared, distinct = _after(engines, prefix, TAIL), _after(engines, [], BRANCH + 1)
    _store(engines, [prefix], distinct)
    for _ in range(AGAIN):
        yield from _run(engines, Case("few_blocks_one_prefix", shared, PREFIX, EVERYONE))
        yield from _run(engines, Case("few_blocks_nothing_shared", distinct, BRANCH))
        yield from _run(engines, Case("preempted_one_prefix", shared[:FEW], None, tokens=ANSWER))
        yield from _run(engines, Case("preempted_nothing_shared", distinct[:FEW], None, tokens=ANSWER))


def _after(engines: Contest, begin: list[int], tokens: int) -> list[list[int]]:
    """Returns prompts with the same begin and `tokens` tokens of their own."""
    return [engines.prompt(len(begin) + tokens, begin) for _ in range(REQUESTS)]


def _store(engines: Contest, *prompts: Sequence[list[int]]) -> None:
    """Stores prompts with all connectors."""
    for name in CACHING:
        for some in prompts:
            engines.engines[name].run(some)
    engines.forget()


def _run(engines: Contest, case: Case) -> Round:
    for name, engine in engines.in_turn():
        if name in case.names:
            before = engine.processor_seconds()
            answer = engine.run(case.prompts, case.tokens)
            if name != ALONE and case.cached is not None:
                require_cached(name, answer, case.cached)
            yield case.name, name, Run(answer, engine.processor_seconds() - before)
    engines.forget()


def _results(case: str, runs: dict[str, list[Run]]) -> Iterator[Spread]:
    """Yields the ratios of the whole time, of the 95th percentile of the times to the first token, and of CPU time."""
    measured = {
        "total": {name: [run.answer.seconds for run in some] for name, some in runs.items()},
        "first_token_p95": {
            name: [percentile(run.answer.first_tokens, 95) for run in some] for name, some in runs.items()
        },
        "cpu": {name: [run.processor for run in some] for name, some in runs.items()},
    }
    steps = {name: f"{statistics.median(run.answer.steps for run in some):.0f} steps" for name, some in runs.items()}
    for what, times in measured.items():
        medians = "; ".join(
            f"{name} {1e3 * statistics.median(taken):.0f} ms, {steps[name]}" for name, taken in times.items()
        )
        for other in (NATIVE, ALONE):
            if other in times:
                claim = AHEAD if other == NATIVE else NO_CLAIM
                yield spread(f"{case}_{what}_{other}_over_pagetier", ratios(times[other], times[OURS]), claim, medians)


def percentile(values: Sequence[float], percent: int) -> float:
    """Returns the smallest value that is not below `percent` percent of all values."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]
