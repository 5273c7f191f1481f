"""Makes the report of a comparison from its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec
import numpy as np

from pagetier.client.cli.bench.intervals import Bootstrap, Estimate, Values
from pagetier.client.cli.bench.server import Answer
from pagetier.client.cli.bench.workload import BenchPrompt
from pagetier.shm.units import counted

_MIB: Final = 1 << 20
_ONE_ROUND: Final = (
    "with one round they do not show how runs differ, and noise looks like a gain: take --rounds 3 or more"
)


class Run(msgspec.Struct, frozen=True):
    """What one system did in one round.

    Attributes:
        answers: The answer to each prompt.
        engine_bytes: Resident bytes of the engine at the end.
        daemon_bytes: Resident bytes of the daemon with its arena; 0 without one.
        evicted_pages: Pages that the daemon evicted.
    """

    answers: tuple[Answer, ...]
    engine_bytes: int
    daemon_bytes: int
    evicted_pages: int


class Row(msgspec.Struct, frozen=True):
    """One measure of one system.

    Attributes:
        measure: What was measured.
        unit: Its unit.
        better: Which values are better.
        system: The system.
        result: The value with its interval.
        over_alone: The value over that of vLLM alone, paired; None for vLLM alone and where there is no ratio.
    """

    measure: str
    unit: str
    better: str
    system: str
    result: Estimate
    over_alone: Estimate | None = None


class BenchReport(msgspec.Struct, frozen=True):
    """The result of a comparison. With --json its fields are the keys.

    Attributes:
        model: The model.
        rounds: The number of rounds.
        requests: The requests of each run.
        seed: The seed of the prompts and of the intervals.
        rows: The measures.
        different_answers: For each system the answers that differ from the first ones of vLLM alone.
        evicted_pages: Pages that pagetier evicted for want of memory, in all rounds.
    """

    model: str
    rounds: int
    requests: int
    seed: int
    rows: list[Row]
    different_answers: dict[str, int]
    evicted_pages: int


def report_of(model: str, prompts: Sequence[BenchPrompt], runs: Mapping[str, Sequence[Run]], seed: int) -> BenchReport:
    """Returns the report. The first system is vLLM alone."""
    reference = next(iter(runs.values()))
    return BenchReport(
        model=model,
        rounds=len(reference),
        requests=len(prompts),
        seed=seed,
        rows=list(_Measures(prompts, runs, Bootstrap(seed)).rows()),
        different_answers={name: _different(done, reference[0]) for name, done in runs.items()},
        evicted_pages=sum(run.evicted_pages for done in runs.values() for run in done),
    )


def _different(runs: Sequence[Run], reference: Run) -> int:
    return sum(
        answer.tokens != first.tokens
        for run in runs
        for answer, first in zip(run.answers, reference.answers, strict=True)
    )


class _Measures:
    """Makes the rows of a report."""

    def __init__(self, prompts: Sequence[BenchPrompt], runs: Mapping[str, Sequence[Run]], bootstrap: Bootstrap) -> None:
        self._returning = np.array([prompt.returning for prompt in prompts])
        self._runs, self._bootstrap = runs, bootstrap
        self._alone = next(iter(runs))

    def rows(self) -> Iterator[Row]:
        """Yields all rows, those of one measure together."""
        for name, chosen in (("new prompts", ~self._returning), ("returning prompts", self._returning)):
            if chosen.any():
                yield from self._first_tokens(f"time to first token, {name}", chosen)
        yield from self._rates()
        yield from self._hits()
        yield from self._memory("memory of the engine", lambda run: run.engine_bytes)
        yield from self._memory("memory of the daemon with its arena", lambda run: run.daemon_bytes)

    def _first_tokens(self, name: str, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Iterator[Row]:
        alone = self._values(self._alone, lambda answer: answer.first_token_seconds)[:, chosen]
        for system in self._runs:
            values = self._values(system, lambda answer: answer.first_token_seconds)[:, chosen]
            ratio = None if system == self._alone else self._bootstrap.median_ratio(values, alone)
            yield Row(name, "ms", "lower", system, self._bootstrap.median(values * 1000), ratio)

    def _rates(self) -> Iterator[Row]:
        alone = self._values(self._alone, lambda answer: answer.seconds)
        for system in self._runs:
            seconds = self._values(system, lambda answer: answer.seconds)
            tokens = self._values(system, lambda answer: answer.prompt_tokens + len(answer.tokens))
            ratio = None if system == self._alone else self._bootstrap.ratio_of_rates(seconds, alone)
            result = self._bootstrap.ratio_of_sums(tokens, seconds)
            yield Row("tokens of prompt and answer a second, by request", "tokens/s", "higher", system, result, ratio)

    def _hits(self) -> Iterator[Row]:
        for system in self._runs:
            hits = self._values(system, lambda answer: 100 * answer.hit_tokens)
            result = self._bootstrap.ratio_of_sums(hits, self._values(system, lambda answer: answer.prompt_tokens))
            yield Row("prompt tokens that hit", "%", "higher", system, result)

    def _memory(self, name: str, nbytes: Callable[[Run], int]) -> Iterator[Row]:
        for system, runs in self._runs.items():
            values = np.array([[nbytes(run) / _MIB] for run in runs])
            if values.any():
                yield Row(name, "MiB", "lower", system, self._bootstrap.median(values))

    def _values(self, system: str, value: Callable[[Answer], float]) -> Values:
        return np.array([[value(answer) for answer in run.answers] for run in self._runs[system]], dtype=np.float64)


def text_of(report: BenchReport) -> str:
    """Returns the report as text."""
    lines = [
        f"{report.model}: {counted(report.rounds, 'round')} of {report.requests} requests; medians with 95 % intervals",
        "",
    ]
    for measure, rows in groupby(report.rows, key=lambda row: row.measure):
        found = list(rows)
        lines.append(f"{measure}, {found[0].unit} ({found[0].better} is better)")
        lines += map(_line_of, found)
        lines.append("")
    return "\n".join([*lines, *_remarks(report)])


def _line_of(row: Row) -> str:
    ratio = f"  {_text_of(row.over_alone)} x alone" if row.over_alone else ""
    return f"  {row.system:<18}{_text_of(row.result):<28}{ratio}".rstrip()


def _text_of(estimate: Estimate) -> str:
    return f"{_digits(estimate.value)} ({_digits(estimate.low)} to {_digits(estimate.high)})"


def _digits(value: float) -> str:
    """Returns a number with three significant digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _remarks(report: BenchReport) -> Iterator[str]:
    few = _ONE_ROUND if report.rounds == 1 else "few rounds make them too narrow"
    yield f"intervals: bootstrap over rounds and requests, seed {report.seed}; {few}"
    total = report.rounds * report.requests
    counts = ", ".join(f"{name} {count}" for name, count in report.different_answers.items())
    yield f"answers that differ from the first ones of vLLM alone, of {total}: {counts}"
    if report.evicted_pages:
        yield f"pagetier evicted {report.evicted_pages:,} pages: its memory was too small for the prompts; see --arena"
