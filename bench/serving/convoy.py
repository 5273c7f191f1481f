"""Measures requests that arrive together: with one prefix that every cache has, with branches of it, with nothing."""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from serving.compare import ALONE, CACHING, EVERYONE, NATIVE, OURS, Contest, MissedError, contest, require_cached
from serving.confidence import AHEAD, NO_CLAIM, Spread, ratios, spread
from serving.engine import BLOCK, Answer

REQUESTS = 50
PREFIX = 128 * BLOCK
TAIL = BLOCK - 1  # no page of its own
BRANCH = 32 * BLOCK

Measured = dict[str, dict[str, list[Answer]]]
"""By case and engine, the answers of each round."""


def measure(rounds: int, minutes: float) -> Iterator[Spread]:
    """Yields the results of `rounds` pairs, or of as many as the time allowed."""
    ends, measured = time.monotonic() + 60 * minutes, Measured()
    with tempfile.TemporaryDirectory(prefix="pagetier-bench-") as folder, contest(Path(folder)) as engines:
        for answers in itertools.islice(_rounds(engines, spare=rounds // 4 + 2), rounds):
            for case, name, answer in answers:
                measured.setdefault(case, {}).setdefault(name, []).append(answer)
            if time.monotonic() > ends:
                break
    for case, answers_of in measured.items():
        yield from _results(case, answers_of)


def _rounds(engines: Contest, spare: int) -> Iterator[list[tuple[str, str, Answer]]]:
    """Yields valid rounds. Skips a few in which a cache did not have what it should."""
    while True:
        try:
            yield [*_round(engines)]
        except MissedError as error:
            if not spare:
                raise
            spare -= 1
            print(f"skipping a round: {error}", file=sys.stderr)


def _round(engines: Contest) -> Iterator[tuple[str, str, Answer]]:
    prefix = engines.prompt(PREFIX)
    shared = [engines.prompt(PREFIX + TAIL, prefix) for _ in range(REQUESTS)]
    branched = [engines.prompt(PREFIX // 2 + BRANCH + 1, prefix[: PREFIX // 2]) for _ in range(REQUESTS)]
    distinct = [engines.prompt(BRANCH + 1) for _ in range(REQUESTS)]
    for name in CACHING:
        for prompts in ([prefix], branched, distinct):
            engines.engines[name].run(prompts)
    engines.forget()
    yield from _case(engines, "one_prefix", shared, PREFIX, EVERYONE)
    yield from _case(engines, "branches", branched, PREFIX // 2 + BRANCH, CACHING)
    yield from _case(engines, "nothing_shared", distinct, BRANCH, CACHING)
    engines.only_on_disk()
    yield from _case(engines, "one_prefix_on_disk", shared, PREFIX, (OURS,))
    engines.scene.wait_until_nothing_is_saved()


def _case(
    engines: Contest, case: str, prompts: Sequence[list[int]], cached: int, names: Sequence[str]
) -> Iterator[tuple[str, str, Answer]]:
    for name, engine in engines.in_turn():
        if name in names:
            answer = engine.run(prompts)
            if name != ALONE:
                require_cached(name, answer, cached)
            yield case, name, answer
    engines.forget()


def _results(case: str, answers: dict[str, list[Answer]]) -> Iterator[Spread]:
    """Yields the ratios of the whole time and of the 95th percentile of the times to the first token."""
    totals = {name: [one.seconds for one in rounds] for name, rounds in answers.items()}
    firsts = {name: [percentile(one.first_tokens, 95) for one in rounds] for name, rounds in answers.items()}
    for what, times in (("total", totals), ("first_token_p95", firsts)):
        medians = "; ".join(f"{name} {1e3 * statistics.median(taken):.0f} ms" for name, taken in times.items())
        for other in (NATIVE, ALONE):
            if other in times:
                claim = AHEAD if other == NATIVE else NO_CLAIM
                yield spread(f"{case}_{what}_{other}_over_pagetier", ratios(times[other], times[OURS]), claim, medians)


def percentile(values: Sequence[float], percent: int) -> float:
    """Returns the smallest value that is not below `percent` percent of all values."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]
