"""Compares the hit ratios that the daemon predicts for caches of other sizes with those that they have.

The trace is replayed through the daemon's own index with an arena of one size, and the curve is read as `pagetier
advise` reads it. The measured ratio of each size comes from a replay through an index of that size. Hits are full pages
before the first one of a prompt that is missing.

Predictions are what LRU hits. With --policy cadence they are the least that it hits: only what it hits less is an
error.

The exit code is 1 if a prediction is wrong by more than 0.02, or those of a row by more than 0.01 in the mean.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from eviction.core import Cache, Outcome, compiled_core, predict, replay
from eviction.traces import Trace, read_trace
from measure import machine

SHARES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
MOST: Final = 0.02
MEAN: Final = 0.01


class Row(msgspec.Struct, frozen=True):
    """A trace with an arena, and for each size the measured and the predicted ratio.

    Attributes:
        policy: The policy that the daemon evicts by.
        arena: The size of the arena in per cent of all different pages.
        sizes: The sizes of the caches in per cent of all different pages.
        measured: What a cache of each size hits.
        predicted: What the daemon predicts that LRU hits.
        sampled: The share of pages that are sampled at the end.
        daemon_ns: CPU time that the curve adds to lookups and stores, by looked-up page.
    """

    trace: str
    policy: str
    arena: float
    sizes: list[float]
    measured: list[float]
    predicted: list[float]
    sampled: float
    daemon_ns: float

    @property
    def errors(self) -> list[float]:
        """How far each prediction is from what was measured; where the policy hits more than LRU, 0."""
        more = [predicted - measured for predicted, measured in zip(self.predicted, self.measured, strict=True)]
        return [*map(abs, more)] if self.policy == "lru" else [max(0.0, one) for one in more]

    @property
    def mean(self) -> float:
        """The mean of the errors."""
        return sum(self.errors) / len(self.errors)

    @property
    def is_wrong(self) -> bool:
        """Whether the predictions are too far off."""
        return max(self.errors) > MOST or self.mean > MEAN


def rows_of(
    core: ctypes.CDLL, name: str, trace: Trace, policy: str, arenas: Sequence[float], sizes: Sequence[float]
) -> Iterator[Row]:
    """Yields a row for each arena; arenas and sizes are in per cent of all different pages."""
    pages = max(1, len(trace.pages))

    @cache
    def replayed(size: float) -> Outcome:
        return replay(core, trace, Cache(trace.room(size)), policy)

    for arena in arenas:
        ratios, curve = predict(core, trace, trace.room(arena), policy, np.array([*map(trace.room, sizes)], np.float64))
        measured = [replayed(size).hits / pages for size in sizes]
        seconds = curve.record_seconds + curve.store_seconds - replayed(arena).store_seconds
        yield Row(name, policy, arena, [*sizes], measured, ratios.tolist(), curve.share, 1e9 * seconds / pages)


def show(rows: Sequence[Row]) -> None:
    """Prints the measured and the predicted ratios side by side: a line of both for each arena."""
    headings = [f"{size:g} %" for size in rows[0].sizes]
    table = Table("trace", "arena", "", *headings, "most", "mean", "sampled", "daemon", title=machine())
    for row in rows:
        costs = (f"{max(row.errors):.4f}", f"{row.mean:.4f}", f"{row.sampled:.1%}", f"{row.daemon_ns:.0f} ns/page")
        table.add_row(row.trace, f"{row.arena:g} %", f"{row.policy} measured", *[f"{one:.4f}" for one in row.measured])
        table.add_row("", "", "predicted", *[f"{one:.4f}" for one in row.predicted], *costs)
    Console().print(table)


def parsed() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Returns the parser and its arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", metavar="FILE:TOKENS", help="a trace, and the tokens of its blocks")
    parser.add_argument("--policy", choices=("lru", "cadence"), default="lru", help="the daemon evicts by it")
    parser.add_argument("--arenas", type=float, nargs="+", default=SHARES, help="in %% of the different pages")
    parser.add_argument("--sizes", type=float, nargs="+", default=SHARES, help="in %% of the different pages")
    parser.add_argument("--json", action="store_true", help="print one object a row")
    return parser, parser.parse_args()


def main() -> None:
    parser, given = parsed()
    rows: list[Row] = []
    core = compiled_core()
    for each in given.traces:
        path, _, tokens = each.rpartition(":")
        if not path or not tokens.isdecimal():
            parser.error(f"{each}: write FILE:TOKENS, for example trace.jsonl.gz:512")
        trace, name = read_trace(Path(path), int(tokens)), Path(path).name.partition(".")[0]
        rows += rows_of(core, name, trace, given.policy, given.arenas, given.sizes)
    if given.json:
        sys.stdout.write("".join(f"{json.dumps(msgspec.to_builtins(row))}\n" for row in rows))
    else:
        show(rows)
    if any(row.is_wrong for row in rows):
        sys.exit(f"a prediction is wrong by more than {MOST}, or those of a row by more than {MEAN} in the mean")


if __name__ == "__main__":
    main()
