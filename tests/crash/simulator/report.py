"""Writes the report of a run, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np

from oracle.checker import Kind, Violation
from simulator.call_times import Latency
from simulator.slot_reuse import LIMIT_S
from simulator.tally import Tally
from simulator.trends import MARGIN, Drift, Growth

_PAGES: Final = ("evicted", "disk_written", "disk_read", "disk_evicted", "disk_lost", "missed", "may be missed")

_GROWTH: Final = """The slope is computed within the lives of processes (Theil and Sen, over medians of time slices,
without the start of each life), with its 99 % interval. The proven growth is the lower end of the interval times the
longest life. A proven growth beyond the limit is a leak. "All lives" treats them as one.
"""

_DRIFT: Final = f"""The table compares the beginning and the end of the run, each in some windows, by the medians of the
windows' quantiles. Intervals have 99 % (bootstrap over windows). The machine's ratio is that of a fixed piece of work
that the same process times before each call (scattered memory reads before a match; a message to another process and
back before a reserve), and "relative" is the ratio of the calls in units of that work. A call is slower if it is slower
by the clock and relative to the fixed work, in both by more than {100 * (MARGIN - 1):.0f} % at the lower end of the
interval.
"""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """What is particular to a kind of run.

    Attributes:
        notes: Sentences.
        latencies: The durations of calls.
        pages: The numbers of pages that each engine got, by response, in rising order.
        growths: The growth of measured series.
        drifts: The changes of durations of calls.
        timeline: Measured values in equal parts of the run.
    """

    notes: list[str] = []
    latencies: list[Latency] = []
    pages: dict[str, list[int]] = {}
    growths: list[Growth] = []
    drifts: list[Drift] = []
    timeline: dict[str, list[float | None]] = {}

    def violations(self) -> list[Violation]:
        """Returns the series that grew and the calls that became slower."""
        grew = [
            f"{one.name}, by {one.proven:.2f} {one.unit} of {one.limit:.2f}" for one in self.growths if not one.flat
        ]
        slower = [f"{one.call} p{100 * one.share:g}, {one.ratio}" for one in self.drifts if not one.equal]
        return [Violation(Kind.GREW, what) for what in grew] + [Violation(Kind.SLOWER, what) for what in slower]

    def with_fleet(self, other: Results) -> Results:
        """Returns these results with the notes and growths of another round."""
        return Results(notes=self.notes + other.notes, growths=self.growths + other.growths)

    def sections(self) -> Iterator[str]:
        """Yields the results as Markdown."""
        yield from self.notes
        if self.latencies:
            rows = [(one.call, f"{one.count:,}", one.p50, one.p99, one.most) for one in self.latencies]
            yield _table(["call", "how many", "p50, ms", "p99, ms", "most, ms"], rows)
        if self.pages:
            spread = [(name, pages[0], pages[-1], round(sum(pages) / len(pages))) for name, pages in self.pages.items()]
            yield _table(["pages of an engine", "least", "most", "mean"], spread)
        if self.growths:
            yield f"## Growth\n\n{_GROWTH}"
            head = ["what", "first tenth", "last tenth", "most", "slope an hour", "interval", "longest life"]
            yield _table([*head, "proven", "limit", ""], map(_growth, self.growths))
        if self.drifts:
            yield f"## Slowdown\n\n{_DRIFT}"
            head = ["call", "quantile", "first", "last", "ratio", "machine", "relative", ""]
            yield _table(head, map(_drift, self.drifts))
        if self.timeline:
            series = [(name, *map(_shortly, values)) for name, values in self.timeline.items()]
            yield "## Over time\n\nMedians and quantiles in equal parts of the run.\n"
            yield _table(["what", *map(str, range(1, len(series[0])))], series)


class Report(msgspec.Struct):
    """The content of the JSON file.

    Attributes:
        title: The kind of the run.
        seed: The seed of the planned events; a second run with it plans the same events, at other moments of its
            daemons.
        about: The machine.
        scenes: The counts of all rounds, by name of the scene.
        journals: The folders of journals that were kept.
        results: What is particular to this kind of run.
    """

    title: str
    seed: int
    about: str = ""
    scenes: dict[str, Tally] = {}
    journals: list[str] = []
    results: Results = Results()

    @property
    def tally(self) -> Tally:
        """The counts of all scenes together."""
        total = Tally()
        for tally in self.scenes.values():
            total.add(tally)
        return total

    @property
    def violations(self) -> list[Violation]:
        """All broken promises."""
        return self.tally.violations + self.results.violations()

    def markdown(self) -> str:
        """Returns the report as Markdown."""
        tally = self.tally
        parts = [
            f"# {self.title}\n\nSeed {self.seed}, {tally.rounds} rounds, {tally.seconds:.0f} s. {self.about}\n",
            _counts("killed", tally.deaths),
            _counts("stopped for a while", tally.stops),
            _counts("started", tally.lives),
            _counts("pages by response", tally.responses),
            f"{tally.bytes_verified / 1e9:.1f} GB were compared byte by byte; {tally.samples} samples were checked.",
            f"The slot of a dead process was free after: {_spread(tally.returned)}; {_late(tally)} took over a second.",
            "Only deaths after which the daemon ran for over a second are measured.",
            f"A new daemon served after: {_spread(tally.adoptions)}.\n",
            _scenes(self.scenes),
            *self.results.sections(),
            f"## Violations: {len(self.violations)}\n",
            *(f"- {violation}" for violation in self.violations),
            *(f"- journals: {folder}" for folder in self.journals),
        ]
        return "\n".join(parts) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Returns the report in a JSON file."""
        return msgspec.json.decode(path.read_bytes(), type=cls, dec_hook=lambda kind, value: kind(value))

    def write(self, folder: Path, name: str) -> None:
        """Writes NAME.json and NAME.md."""
        folder.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {**msgspec.to_builtins(self), "violations": self.violations}
        (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
        (folder / f"{name}.md").write_text(self.markdown())


def _shortly(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _late(tally: Tally) -> int:
    return sum(seconds > LIMIT_S for seconds in tally.returned)


def _spread(seconds: Sequence[float]) -> str:
    median, p99, most = 1e3 * np.percentile(seconds or (0.0,), (50, 99, 100))
    return f"median {median:.1f} ms, p99 {p99:.1f} ms, at most {most:.1f} ms ({len(seconds)})"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["--", *["-:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _counts(head: str, counts: Mapping[str, int]) -> str:
    return _table([head, "how many"], [(name, f"{count:,}") for name, count in sorted(counts.items())])


def _scenes(scenes: Mapping[str, Tally]) -> str:
    """Returns the table of scenes: pages as the daemons counted them, slots and disk usage."""
    head = [
        "scene",
        "rounds",
        *(name.replace("_", " ") for name in _PAGES),
        "disk, % of its limit",
        "slots",
        "over 1 s",
    ]
    rows = []
    for name, tally in scenes.items():
        disk = f"{100 * max(tally.disk_use, default=0.0):.1f}"
        rows.append(
            [name, tally.rounds, *(tally.pages[kind] for kind in _PAGES), disk, len(tally.returned), _late(tally)]
        )
    return _table(head, rows)


def _growth(one: Growth) -> Sequence[str]:
    values = [f"{value:.2f} {one.unit}".strip() for value in (one.first, one.last, one.most, one.each_hour)]
    interval = " to ".join("?" if end is None else f"{end:+.2f}" for end in (one.low, one.high))
    span = f"{60 * one.span:.1f} min"
    verdict = "flat" if one.flat else "**GROWS**"
    return [one.name, *values, interval, span, f"{one.proven:.2f}", f"{one.limit:.2f}", verdict]


def _drift(one: Drift) -> Sequence[str]:
    times = [f"{1e6 * seconds:.1f} µs" for seconds in (one.first, one.last)]
    ratios = map(str, (one.ratio, one.machine, one.beside))
    return [one.call, f"p{100 * one.share:g}", *times, *ratios, "equal" if one.equal else "**SLOWER**"]
