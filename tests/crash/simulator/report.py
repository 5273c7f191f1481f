"""Writes the report of a run, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from measure import machine
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


class Spread(msgspec.Struct, frozen=True):
    """The distribution of measured times, in milliseconds."""

    count: int
    median: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Returns the distribution of times in seconds; all numbers are 0 if nothing was measured."""
        median, p99, most = (float(1e3 * value) for value in np.percentile(seconds or (0.0,), (50, 99, 100)))
        return cls(len(seconds), round(median, 1), round(p99, 1), round(most, 1))

    def __str__(self) -> str:
        return f"median {self.median} ms, p99 {self.p99} ms, at most {self.most} ms ({self.count})"


class SceneReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one scene.

    Attributes:
        slots: The number of deaths whose slot was measured.
        late: The number of these slots that were in use for more than a second after the death.
        pages: Pages as the daemons counted them while engines ran, and the pages that were missed and could have been.
        disk_percent: The largest size of the disk tier in percent of its limit.
    """

    rounds: int
    slots: int
    late: int
    pages: dict[str, int]
    disk_percent: float

    @classmethod
    def of(cls, tally: Tally) -> SceneReport:
        """Returns the results of all rounds of a scene."""
        return cls(
            rounds=tally.rounds,
            slots=len(tally.returned),
            late=_late(tally),
            pages=dict(tally.pages),
            disk_percent=round(100 * max(tally.disk_use, default=0.0), 1),
        )


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
    timeline: dict[str, list[float]] = {}

    def violations(self) -> list[Violation]:
        """Returns the series that grew and the calls that became slower."""
        grew = [one for one in self.growths if not one.flat]
        slower = [one for one in self.drifts if not one.equal]
        return [
            *(Violation(Kind.GREW, f"{one.name}, by {one.proven:.2f} {one.unit} of {one.limit:.2f}") for one in grew),
            *(Violation(Kind.SLOWER, f"{one.call} p{100 * one.share:g}, {one.ratio}") for one in slower),
        ]


_NO_MORE: Final = Results()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the JSON file.

    Attributes:
        title: The kind of the run.
        machine: The machine of the run.
        beside: Other load on the machine.
        seed: The seed of the planned events; a second run with it plans the same events, at other moments of its
            daemons.
        deaths: Processes killed, by role; `stops` and `lives` are the stopped and the started ones.
        responses: The number of pages by the response that processes got about them.
        returned: The time from the death of an engine's process until its slot was free again.
        returned_late: The number of slots that were not free after a second.
        adoptions: The time from the fork of a daemon until it served.
        scenes: The results by name of the scene.
        journals: The folders of journals that were kept.
    """

    title: str
    machine: str
    beside: str
    seed: int
    seconds: float
    rounds: int
    engine_deaths: int
    daemon_deaths: int
    worker_deaths: int
    deaths: dict[str, int]
    stops: dict[str, int]
    lives: dict[str, int]
    responses: dict[str, int]
    bytes_verified: int
    steps: int
    samples: int
    returned: Spread
    returned_late: int
    adoptions: Spread
    scenes: dict[str, SceneReport]
    results: Results
    violations: list[Violation]
    journals: list[str]

    def markdown(self) -> str:
        """Returns the report as Markdown."""
        parts = [
            f"# {self.title}\n\nSeed {self.seed}, {self.rounds} rounds, {self.seconds:.0f} s; {self.machine}.",
            f"{self.beside}\n",
            _counts("killed", self.deaths),
            _counts("stopped for a while", self.stops),
            _counts("started", self.lives),
            _counts("pages by response", self.responses),
            f"{self.bytes_verified / 1e9:.1f} GB were compared byte by byte; {self.samples} samples were checked.",
            f"The slot of a dead process was free after: {self.returned}; {self.returned_late} took over a second.",
            "Only deaths after which the daemon ran for over a second are measured.",
            f"A new daemon served after: {self.adoptions}.\n",
            *_scenes(self.scenes),
            *_results(self.results),
            f"## Violations: {len(self.violations)}\n",
            *(f"- {violation}" for violation in self.violations),
            *(f"- journals: {folder}" for folder in self.journals),
        ]
        return "\n".join(parts) + "\n"

    def write(self, folder: Path, name: str) -> None:
        """Writes NAME.json and NAME.md."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")
        (folder / f"{name}.md").write_text(self.markdown())


class Log:
    """The results of a run so far, in total and by scene, and the folders of journals that were kept."""

    def __init__(self, title: str, seed: int, beside: str = "") -> None:
        self.tally = Tally()
        self.kept: list[Path] = []
        self._title = title
        self._seed = seed
        self._beside = beside
        self._scenes: dict[str, Tally] = {}

    def add(self, scene: str, done: Tally) -> None:
        """Adds the counts of a round."""
        self.tally.add(done)
        self._scenes.setdefault(scene, Tally()).add(done)

    def report(self, results: Results = _NO_MORE) -> Report:
        """Returns the report of all rounds so far."""
        tally = self.tally
        return Report(
            title=self._title,
            machine=machine(),
            beside=self._beside,
            seed=self._seed,
            seconds=round(tally.seconds, 1),
            rounds=tally.rounds,
            engine_deaths=tally.engine_deaths,
            daemon_deaths=tally.daemon_deaths,
            worker_deaths=tally.deaths["disk worker"],
            deaths=dict(sorted(tally.deaths.items())),
            stops=dict(sorted(tally.stops.items())),
            lives=dict(sorted(tally.lives.items())),
            responses=dict(sorted(tally.responses.items())),
            bytes_verified=tally.bytes_verified,
            steps=tally.steps,
            samples=tally.samples,
            returned=Spread.of(tally.returned),
            returned_late=_late(tally),
            adoptions=Spread.of(tally.adoptions),
            scenes={name: SceneReport.of(part) for name, part in self._scenes.items()},
            results=results,
            violations=[*tally.violations, *results.violations()],
            journals=[str(folder) for folder in self.kept],
        )


def _late(tally: Tally) -> int:
    return sum(seconds > LIMIT_S for seconds in tally.returned)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _counts(head: str, counts: Mapping[str, int]) -> str:
    return _table([head, "how many"], [(name, f"{count:,}") for name, count in counts.items()])


def _scenes(scenes: Mapping[str, SceneReport]) -> Iterator[str]:
    """Yields the table of scenes: pages as the daemons counted them, slots and disk usage."""
    names = [name.replace("_", " ") for name in _PAGES]
    rows = [
        [name, one.rounds, *(one.pages.get(kind, 0) for kind in _PAGES), one.disk_percent, one.slots, one.late]
        for name, one in scenes.items()
    ]
    yield _table(["scene", "rounds", *names, "disk, % of its limit", "slots", "over 1 s"], rows)


def _results(results: Results) -> Iterator[str]:
    yield from results.notes
    if results.latencies:
        rows = [(one.call, f"{one.count:,}", one.p50, one.p99, one.most) for one in results.latencies]
        yield _table(["call", "how many", "p50, ms", "p99, ms", "most, ms"], rows)
    if results.pages:
        spread = [(name, pages[0], pages[-1], round(sum(pages) / len(pages))) for name, pages in results.pages.items()]
        yield _table(["pages of an engine", "least", "most", "mean"], spread)
    if results.growths:
        yield f"## Growth\n\n{_GROWTH}"
        head = ["what", "first tenth", "last tenth", "most", "slope an hour", "interval", "longest life"]
        yield _table([*head, "proven", "limit", ""], map(_growth, results.growths))
    if results.drifts:
        yield f"## Slowdown\n\n{_DRIFT}"
        yield _table(
            ["call", "quantile", "first", "last", "ratio", "machine", "relative", ""], map(_drift, results.drifts)
        )
    if results.timeline:
        parts = range(1, 1 + len(next(iter(results.timeline.values()))))
        yield "## Over time\n\nMedians and quantiles in equal parts of the run.\n"
        series = [(name, *(f"{value:g}" for value in values)) for name, values in results.timeline.items()]
        yield _table(["what", *map(str, parts)], series)


def _growth(one: Growth) -> Sequence[str]:
    values = [f"{value:.2f} {one.unit}".strip() for value in (one.first, one.last, one.most, one.each_hour)]
    interval, span = f"{one.low:+.2f} to {one.high:+.2f}", f"{60 * one.span:.1f} min"
    return [
        one.name,
        *values,
        interval,
        span,
        f"{one.proven:.2f}",
        f"{one.limit:.2f}",
        "flat" if one.flat else "**GROWS**",
    ]


def _drift(one: Drift) -> Sequence[str]:
    times = [f"{1e6 * seconds:.1f} µs" for seconds in (one.first, one.last)]
    ratios = map(str, (one.ratio, one.machine, one.beside))
    return [one.call, f"p{100 * one.share:g}", *times, *ratios, "equal" if one.equal else "**SLOWER**"]
