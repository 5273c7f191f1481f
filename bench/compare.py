"""Compares the working tree with a commit: `python bench/compare.py COMMIT --bench lookup --rounds 20`.

A round runs a process with each build. The two measure in turn, some milliseconds each, so that a change of the
machine's speed affects both alike; which of them begins alternates from round to round. Both run the operations of the
working tree, so that a changed benchmark is not taken for a changed product.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from comparison.commit_build import Build, CannotCompareError, build, working_tree
from comparison.measured_side import MeasuredSide, Report
from comparison.paired_ratio import ALLOWED, paired_ratio, ratio_of_turns
from measure import machine
from pagetier.daemon.config.fields import fields

BENCHES = sorted(path.stem for path in Path(__file__).parent.glob("comparison/operations/*.py"))
UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
SLOWER, CANNOT_COMPARE = 1, 2
LEAST_ROUNDS = 6


class Comparison(msgspec.Struct, frozen=True):
    """One operation with both builds. Each list has an element a round."""

    before: list[float] = []
    after: list[float] = []
    ratios: list[float] = []

    def add_round(self, before: list[float], after: list[float]) -> None:
        """Adds the seconds of the turns of one round."""
        self.before.append(statistics.median(before))
        self.after.append(statistics.median(after))
        self.ratios.append(ratio_of_turns(before, after))


def compare(bench: str, before: Build, after: Build, rounds: int, ends: float = math.inf) -> dict[str, Comparison]:
    """Returns the comparison of each operation of a benchmark.

    Args:
        bench: The benchmark.
        before: One build.
        after: The other build.
        rounds: How often both are measured.
        ends: When no further round begins, by time.monotonic().

    Raises:
        CannotCompareError: If the benchmark cannot run with both builds, or the time sufficed for too few rounds.
    """
    found: dict[str, Comparison] = defaultdict(Comparison)
    for number in range(rounds):
        began = time.monotonic()
        if began >= ends:
            _expect_enough(bench, number)
            break
        order = (before, after) if number % 2 == 0 else (after, before)
        reports = dict(zip(order, run_round(bench, *order), strict=True))
        for name, turns in reports[before].figures.items():
            found[name].add_round(turns, reports[after].figures[name])
        print(f"{bench}: round {number + 1} of {rounds}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found


def _expect_enough(bench: str, rounds: int) -> None:
    if rounds < LEAST_ROUNDS:
        raise CannotCompareError(f"{bench}: {rounds} rounds in this time, and {LEAST_ROUNDS} are needed")


def run_round(bench: str, first: Build, second: Build) -> tuple[Report, Report]:
    """Measures a benchmark in two new processes, which take turns."""
    with MeasuredSide(bench, first) as one, MeasuredSide(bench, second) as other:
        while True:
            reports = one.advance(), other.advance()
            if reports[0] and reports[1]:
                return reports[0], reports[1]


def table(title: str, comparisons: Iterable[tuple[str, Comparison]]) -> Table:
    """Returns the comparisons for people."""
    made = Table("operation", "before", "after", "ratio", "95 % interval", "", title=title, box=SIMPLE)
    for name, each in comparisons:
        ratio = paired_ratio(each.ratios)
        made.add_row(
            name,
            _duration(each.before),
            _duration(each.after),
            f"{ratio.value:.3f}",
            f"{ratio.low:.3f} to {ratio.high:.3f}",
            "slower" if ratio.slower else "",
        )
    return made


def _duration(samples: list[float]) -> str:
    seconds = statistics.median(samples)
    unit, factor = next(((unit, factor) for unit, factor in UNITS if seconds >= factor), UNITS[-1])
    return f"{seconds / factor:.3g} {unit}"


def main() -> int:
    """Prints a table for each benchmark.

    Returns:
        SLOWER if an operation is slower, CANNOT_COMPARE if a benchmark cannot run with both builds, otherwise 0.
    """
    options = _options()
    try:
        before, after = (replace(each, settings=tuple(options.set)) for each in (build(options.base), working_tree()))
        slower = [_print(bench, before, after, options) for bench in options.bench]
    except CannotCompareError as error:
        print(error, file=sys.stderr)
        return CANNOT_COMPARE
    print(f"slower: the whole interval of after / before is above {ALLOWED}")
    return SLOWER if any(slower) else 0


def _print(bench: str, before: Build, after: Build, options: argparse.Namespace) -> bool:
    """Prints the table of a benchmark and returns whether an operation is slower."""
    found = compare(bench, before, after, options.rounds, time.monotonic() + 60 * options.minutes)
    rounds = max(len(each.ratios) for each in found.values())
    Console().print(table(f"{bench}: {after.name} over {before.name}, {rounds} rounds\n{machine()}", found.items()))
    return any(paired_ratio(each.ratios).slower for each in found.values())


def _setting(text: str) -> tuple[str, str]:
    """Returns the environment variable of a setting, and its value: "evict.policy=lru"."""
    name, _, value = text.partition("=")
    for field in fields():
        if field.path == name:
            return field.variable, value
    raise argparse.ArgumentTypeError(f"no setting is called {name!r}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares the working tree with a commit.")
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--bench", nargs="+", choices=BENCHES, default=["lookup"])
    parser.add_argument("--rounds", type=int, choices=range(LEAST_ROUNDS, 1000), metavar="N", default=20)
    parser.add_argument(
        "--set", nargs="+", type=_setting, default=[], metavar="NAME=VALUE", help="of both sides' daemons"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="of each benchmark: then no round begins")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
