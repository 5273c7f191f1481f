"""Measures requests that arrive together: with one prefix that every cache has, with branches of it, with nothing.

On a machine that others use only the CPU time, which is that of the engine's processes, is certain.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from serving.compare import ALONE, CACHING, EVERYONE, NATIVE, OURS, Contest, MissedError, contest, require_cached
from serving.confidence import AHEAD, NO_CLAIM, Spread, ratios, spread
from serving.engine import BLOCK, Answer

REQUESTS = 50
PREFIX = 128 * BLOCK
TAIL = BLOCK - 1  # no page of its own
BRANCH = 32 * BLOCK

AGAIN = 7  # runs of each case in a round, because a round spends most of its time on storing


class Run(msgspec.Struct, frozen=True):
    """The answer to the prompts of a case, and the CPU seconds of the engine's processes."""

    answer: Answer
    processor: float


Measured = dict[str, dict[str, list[Run]]]
"""By case and engine, all runs."""


def measure(rounds: int, minutes: float) -> Iterator[Spread]:
    """Yields the results of `rounds` pairs, or of as many as the time allowed."""
    ends, measured = time.monotonic() + 60 * minutes, Measured()
    with tempfile.TemporaryDirectory(prefix="pagetier-bench-") as folder, contest(Path(folder)) as engines:
        for runs in itertools.islice(_rounds(engines, spare=rounds // 4 + 2), rounds):
            for case, name, run in runs:
                measured.setdefault(case, {}).setdefault(name, []).append(run)
            if time.monotonic() > ends:
                break
    for case, runs_of in measured.items():
        yield from _results(case, runs_of)


def _rounds(engines: Contest, spare: int) -> Iterator[list[tuple[str, str, Run]]]:
    """Yields valid rounds. Skips a few in which a cache did not have what it should."""
    while True:
        try:
            yield [*_round(engines)]
        except MissedError as error:
            if not spare:
                raise
            spare -= 1
            print(f"skipping a round: {error}", file=sys.stderr)


def _round(engines: Contest) -> Iterator[tuple[str, str, Run]]:
    prefix = engines.prompt(PREFIX)
    shared = [engines.prompt(PREFIX + TAIL, prefix) for _ in range(REQUESTS)]
    branched = [engines.prompt(PREFIX // 2 + BRANCH + 1, prefix[: PREFIX // 2]) for _ in range(REQUESTS)]
    distinct = [engines.prompt(BRANCH + 1) for _ in range(REQUESTS)]
    for name in CACHING:
        for prompts in ([prefix], branched, distinct):
            engines.engines[name].run(prompts)
    engines.forget()
    for _ in range(AGAIN):
        yield from _case(engines, "one_prefix", shared, PREFIX, EVERYONE)
        yield from _case(engines, "branches", branched, PREFIX // 2 + BRANCH, CACHING)
        yield from _case(engines, "nothing_shared", distinct, BRANCH, CACHING)
    engines.only_on_disk()
    yield from _case(engines, "one_prefix_on_disk", shared, PREFIX, (ALONE, OURS))
    engines.scene.wait_until_nothing_is_saved()


def _case(
    engines: Contest, case: str, prompts: Sequence[list[int]], cached: int, names: Sequence[str]
) -> Iterator[tuple[str, str, Run]]:
    for name, engine in engines.in_turn():
        if name in names:
            before = engine.processor_seconds()
            answer = engine.run(prompts)
            if name != ALONE:
                require_cached(name, answer, cached)
            yield case, name, Run(answer, engine.processor_seconds() - before)
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
    for what, times in measured.items():
        medians = "; ".join(f"{name} {1e3 * statistics.median(taken):.0f} ms" for name, taken in times.items())
        for other in (NATIVE, ALONE):
            if other in times:
                claim = AHEAD if other == NATIVE else NO_CLAIM
                yield spread(f"{case}_{what}_{other}_over_pagetier", ratios(times[other], times[OURS]), claim, medians)


def percentile(values: Sequence[float], percent: int) -> float:
    """Returns the smallest value that is not below `percent` percent of all values."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]
