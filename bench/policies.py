"""Replays traces of prompts against eviction policies, and compares them with what is possible at most.

LRU and cadence run in the daemon's own index, with the trace's clock; no bytes are copied. ARC and S3-FIFO are
simulated. The optimum knows all later requests. Hits are full pages before the first one of a prompt that is missing,
in per cent of the optimum's. A trace has one JSON object a line: timestamp in ms, input_length, hash_ids (the format
of `pagetier-bench replay`).

With `--disk` memory has a disk behind it, so many times as large, and a page that is loaded from it is a hit. The
optimum then is that of one cache of both sizes.

The exit code is 1 if cadence hits less than LRU in any cell, by more than 1 % of LRU's hits, or in the mean of all
cells less than 1.05 times as much.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from eviction.core import IN_INDEX, ON_LISTS, Cache, compiled_core, hits_of, replay
from eviction.hints import HintsWanted, with_hints
from eviction.picture import Panel, picture
from eviction.traces import Trace, merged, read_trace

SHARES: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
POLICIES: Final = ("lru", *ON_LISTS, "cadence")
WORST: Final = -1.0  # per cent of LRU's hits, in any cell
LEAST_MEAN: Final = 1.05  # times LRU's hits


class Cell(msgspec.Struct, frozen=True):
    """A policy on a trace, with room for a share of its pages.

    Attributes:
        speed: How many times as fast the clock runs.
        percent: Its hits in per cent of the optimum's.
        ratio: Its hits in per cent of the pages of all prompts.
        disk: How many times as large as memory the disk is.
        seed: Of the draws.
        in_memory: Its hits without those on disk, in per cent of the optimum's.
        written: The pages that were written to disk, by page of all prompts.
        followed: The share of requests during which the policy followed LRU.
        left_out: The share of missing pages that were not stored.
        store_ns: CPU time of all stores, by missing page.
    """

    trace: str
    speed: float
    share: float
    policy: str
    percent: float
    ratio: float
    disk: float = 0.0
    seed: int = 1
    in_memory: float = 0.0
    written: float = 0.0
    followed: float = 0.0
    left_out: float = 0.0
    store_ns: float = 0.0


class Setting(msgspec.Struct, frozen=True, eq=False):
    """A trace with its clock, a size of the cache and of the disk behind it, and seeds of the draws."""

    name: str
    trace: Trace
    speed: float
    disk: float
    share: float
    seeds: Sequence[int] = (1,)

    @property
    def room(self) -> int:
        """The pages that memory has room for."""
        return self.trace.room(self.share)

    @property
    def rooms(self) -> int:
        """The pages that memory and disk have room for."""
        return self.room + round(self.room * self.disk)

    def cell(self, core: ctypes.CDLL, policy: str, seed: int, best: int) -> Cell:
        """Returns the cell of a policy; `best` is what the optimum hits."""
        if policy not in IN_INDEX:
            hits = best if policy == "optimum" else hits_of(core, policy, self.trace, self.rooms)
            return self._cell(policy, seed, hits, best)
        cache = Cache(self.room, self.rooms - self.room, self.speed, seed)
        out = replay(core, self.trace, cache, policy)
        missing, pages = max(1, out.stored + out.left_out), max(1, len(self.trace.pages))
        return msgspec.structs.replace(
            self._cell(policy, seed, out.hits, best),
            in_memory=100 * out.hits_in_memory / max(1, best),
            written=out.written / pages,
            followed=out.followed / max(1, len(self.trace.seconds)),
            left_out=out.left_out / missing,
            store_ns=1e9 * out.store_seconds / missing,
        )

    def _cell(self, policy: str, seed: int, hits: int, best: int) -> Cell:
        percent, ratio = 100 * hits / max(1, best), 100 * hits / max(1, len(self.trace.pages))
        return Cell(self.name, self.speed, self.share, policy, percent, ratio, self.disk, seed)

    def cells(self, core: ctypes.CDLL, policies: Sequence[str]) -> list[Cell]:
        """Returns the cells of these policies, and of the optimum. Only cadence draws."""
        best = hits_of(core, "optimum", self.trace, self.rooms)
        drawn = [
            (policy, seed) for policy in policies for seed in (self.seeds if policy == "cadence" else self.seeds[:1])
        ]
        return [self.cell(core, policy, seed, best) for policy, seed in (*drawn, ("optimum", self.seeds[0]))]


def with_merged(traces: Mapping[str, Trace], shifts: Iterable[float]) -> dict[str, Trace]:
    """Returns the traces, and each two of them as one: the second begins so many seconds after the first."""
    all_traces = dict(traces)
    for shift, (first, second) in itertools.product(shifts, itertools.permutations(traces, 2)):
        name = f"{first} + {second}" + (f", {shift:g} s later" if shift else "")
        if shift or f"{second} + {first}" not in all_traces:
            all_traces[name] = merged(traces[first], traces[second], shift)
    return all_traces


def measure(core: ctypes.CDLL, settings: Sequence[Setting], policies: Sequence[str], jobs: int) -> Iterator[Cell]:
    """Yields all cells. The replays of `jobs` settings run at the same time."""
    with ThreadPoolExecutor(jobs) as threads:
        for cells in threads.map(lambda setting: setting.cells(core, policies), settings):
            yield from cells


def show(cells: Sequence[Cell]) -> None:
    """Prints a table with a row for each policy on each trace."""
    shares = sorted({cell.share for cell in cells})
    columns = [f"{share:g} %" for share in shares]
    table = Table("trace", "speed", "disk", "policy", "seed", *columns, "mean", title="hits in % of the optimum")
    rows: dict[tuple[str, float, float, str, int], list[float]] = {}
    for cell in cells:
        if cell.policy != "optimum":
            rows.setdefault((cell.trace, cell.speed, cell.disk, cell.policy, cell.seed), []).append(cell.percent)
    for (trace, speed, disk, policy, seed), row in rows.items():
        mean = sum(row) / len(row)
        percents = [f"{percent:.1f}" for percent in (*row, mean)]
        table.add_row(trace, f"{speed:g}", f"{disk:g}x", policy, f"{seed}", *percents)
    Console().print(table)


def compared(cells: Sequence[Cell]) -> Iterator[tuple[Cell, float]]:
    """Yields cadence's cells, and what LRU hits there."""
    lru = {(cell.trace, cell.speed, cell.disk, cell.share): cell.percent for cell in cells if cell.policy == "lru"}
    for cell in cells:
        before = lru.get((cell.trace, cell.speed, cell.disk, cell.share))
        if cell.policy == "cadence" and before:
            yield cell, before


def worse_than_lru(cells: Sequence[Cell]) -> list[str]:
    """Returns a line for each cell in which cadence hits less than LRU by more than the limit, and one for the mean."""
    lines, ratios = [], []
    for cell, before in compared(cells):
        change = 100 * (cell.percent - before) / before
        ratios.append(cell.percent / before)
        if change < WORST:
            where = f"{cell.trace} at {cell.share:g} %, disk {cell.disk:g}x, speed {cell.speed:g}, seed {cell.seed}"
            lines.append(f"{where}: cadence {cell.percent:.1f}, lru {before:.1f} ({change:+.1f} %)")
    if ratios and (mean := sum(ratios) / len(ratios)) < LEAST_MEAN:
        lines.append(f"in the mean of {len(ratios)} cells {mean:.3f} times LRU's hits, less than {LEAST_MEAN:g}")
    return lines


def panels(cells: Sequence[Cell]) -> list[Panel]:
    """Returns a panel for each trace, at the first speed, disk and seed."""
    first = (cells[0].speed, cells[0].disk, cells[0].seed)
    drawn: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for cell in cells:
        if (cell.speed, cell.disk, cell.seed) == first:
            drawn.setdefault(cell.trace, {}).setdefault(cell.policy, []).append((cell.share, cell.ratio))
    return [Panel(trace, lines) for trace, lines in drawn.items()]


def parsed() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Returns the parser and its arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", metavar="FILE:TOKENS", help="a trace, and the tokens of its blocks")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="sizes in %% of the different pages")
    parser.add_argument("--speed", type=float, nargs="+", default=[1.0], help="how much faster the clock runs")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument("--merge", action="store_true", help="replay each two traces together, too")
    parser.add_argument("--shift", type=float, nargs="+", default=[0.0], metavar="SECONDS",
                        help="how much later the second trace of a merge begins")  # fmt: skip
    parser.add_argument("--hints", metavar="KIND:SHARE", help="over or returns, and the share of hints that are right")
    parser.add_argument("--disk", type=float, nargs="+", default=[0.0], metavar="TIMES",
                        help="how many times as large as memory the disk is")  # fmt: skip
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="decide which pages cadence draws")
    parser.add_argument("--hint-seed", type=int, default=1, help="decides which hints are wrong")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the hit ratio over the size as SVG")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="replays at the same time")
    parser.add_argument("--json", action="store_true", help="print one object a cell")
    return parser, parser.parse_args()


def wanted_hints(parser: argparse.ArgumentParser, given: argparse.Namespace) -> HintsWanted:
    """Returns which hints to derive. Ends the process if the command line does not say."""
    print(f"hints {given.hints}, seed {given.hint_seed}", file=sys.stderr)
    try:
        return HintsWanted.parse(given.hints, given.hint_seed)
    except ValueError:
        parser.error(f"{given.hints}: write KIND:SHARE, for example over:0.9 or returns:1.0")


def main() -> None:
    parser, given = parsed()
    traces = {}
    for each in given.traces:
        path, _, tokens = each.rpartition(":")
        if not path or not tokens.isdecimal():
            parser.error(f"{each}: write FILE:TOKENS, for example trace.jsonl.gz:512")
        traces[Path(path).name.partition(".")[0]] = read_trace(Path(path), int(tokens))
    if given.hints:
        traces = {name: with_hints(trace, wanted_hints(parser, given)) for name, trace in traces.items()}
    if given.merge:
        traces = with_merged(traces, given.shift)
    settings = [
        Setting(name, traces[name], *at, given.seeds)
        for name in traces
        for at in itertools.product(given.speed, given.disk, given.shares)
    ]
    cells = [*measure(compiled_core(), settings, given.policies, given.jobs)]
    if given.json:
        sys.stdout.write("".join(f"{json.dumps(msgspec.to_builtins(cell))}\n" for cell in cells))
    else:
        show(cells)
    if given.picture:
        given.picture.write_text(picture(panels(cells)))
    if worse := worse_than_lru(cells):
        sys.exit("\n".join(["cadence hits less than it should:", *worse]))


if __name__ == "__main__":
    main()
