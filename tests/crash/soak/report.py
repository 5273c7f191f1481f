"""Writes the report of a soak: whether anything grew, slowed down or failed, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from chaos.report import Spread
from chaos.round_counts import Tally
from oracle.checker import Violation
from soak.latency_histogram import Counts, longest, quantile
from soak.plan import WINDOWS, Plan
from soak.probe import CONTROLS, Timed
from soak.sampling import Reading, Vitals
from soak.slope_test import Growth, Point, judged, thinned
from soak.slowdown_test import SHARES, Drift, Windows, drift

_MIB: Final = float(1 << 20)
_ALL_OF_IT: Final = 0


class Measured(msgspec.Struct, frozen=True):
    """The measurements of a run.

    `windows` are counts by window, kind and duration; `warm`: the disk was full at the begin.
    """

    plan: Plan
    tally: Tally
    readings: Sequence[Reading]
    windows: Counts
    warm: bool


class Window(msgspec.Struct, frozen=True):
    """The quantiles of one kind of call in one window, in microseconds, for SHARES.

    `at` is the end of the window in seconds.
    """

    at: float
    call: str
    quantiles: tuple[float, ...]
    calls: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the JSON file.

    Attributes:
        machine: The machine of the run.
        beside: Other load on the machine.
        part: The seconds at the beginning and at the end that are compared.
        deaths: Processes killed, by role; `stops` and `lives` are the stopped and the started ones.
        responses: The number of pages by the response that processes got about them.
        warm: Whether the disk was full when the measurement began; otherwise its growth is not judged.
        longest_ms: The longest call of each kind.
    """

    machine: str
    beside: str
    seed: int
    seconds: float
    part: float
    deaths: dict[str, int]
    stops: dict[str, int]
    lives: dict[str, int]
    responses: dict[str, int]
    pages: dict[str, int]
    bytes_verified: int
    samples: int
    readings: int
    adoptions: Spread
    slots_returned: Spread
    warm: bool
    longest_ms: dict[str, float]
    growths: list[Growth]
    drifts: list[Drift]
    windows: list[Window]
    violations: list[Violation]

    @property
    def failed(self) -> bool:
        """Whether anything failed, grew or slowed down."""
        return bool(self.violations) or not all(g.flat for g in self.growths) or not all(d.equal for d in self.drifts)


def report_of(measured: Measured, machine: str, beside: str) -> Report:
    """Returns the report of a run on this machine; `beside` is the other load on it."""
    tally = measured.tally
    return Report(
        machine=machine,
        beside=beside,
        seed=measured.plan.seed,
        seconds=measured.plan.seconds,
        part=measured.plan.part,
        deaths=dict(sorted(tally.deaths.items())),
        stops=dict(sorted(tally.stops.items())),
        lives=dict(sorted(tally.lives.items())),
        responses=dict(sorted(tally.responses.items())),
        pages=dict(tally.pages),
        bytes_verified=tally.bytes_verified,
        samples=tally.samples,
        readings=len(measured.readings),
        adoptions=Spread.of(tally.adoptions),
        slots_returned=Spread.of(tally.returned),
        warm=measured.warm,
        longest_ms={kind.name.lower(): _longest_ms(measured.windows, kind) for kind in Timed},
        growths=growths_of(measured),
        drifts=drifts_of(measured),
        windows=_windows(measured),
        violations=tally.violations,
    )


def _longest_ms(windows: Counts, kind: Timed) -> float:
    return round(1e3 * longest(windows[:, kind].sum(axis=0)), 3)


def drifts_of(measured: Measured) -> list[Drift]:
    """Returns the drift of each quantile of each kind of call; none if the run was too short for two separate parts."""
    windows = measured.windows
    if len(windows) < 2 * WINDOWS:
        return []
    found = []
    for call, control in CONTROLS.items():
        parts = [list(part) for kind in (call, control) for part in (windows[:WINDOWS, kind], windows[-WINDOWS:, kind])]
        if all(counts.sum() for part in parts for counts in part):
            compared = Windows(*parts)
            found += [drift(call.name.lower(), share, compared, measured.plan.seed) for share in SHARES]
    return found


def growths_of(measured: Measured) -> list[Growth]:
    """Returns the growth of each value that must stay constant; of varying values only if the run was long enough."""
    found = [*_of_process(measured, "daemon"), *_of_process(measured, "probe")]
    found.append(_growth(measured, "LMDB readers", "", _plain("readers", 1), 2))
    if measured.plan.evens_out:
        found += [*_of_process(measured, "worker"), *_of_index(measured)]
    if measured.plan.evens_out and measured.warm:
        limit = measured.plan.scene.disk / _MIB / 20
        found.append(_growth(measured, "disk", "MiB", _plain("disk", _MIB), limit))
    return found


def _of_process(measured: Measured, role: str) -> Iterator[Growth]:
    limit, memory = measured.plan.growth / _MIB, _private(role)
    yield _growth(measured, f"RssAnon, {role}", "MiB", memory, limit)
    yield _growth(measured, f"RssAnon, all lives of the {role}", "MiB", _at_all(memory), limit)
    yield _growth(measured, f"descriptors, {role}", "", _descriptors(role), 3)


def _of_index(measured: Measured) -> Iterator[Growth]:
    yield _growth(measured, "/dev/shm", "MiB", _plain("shm", _MIB), measured.plan.scene.arena / _MIB / 50)
    yield _growth(measured, "slots", "", _plain("slots", 1), 3)
    yield _growth(measured, "pages being written", "", _plain("open_entries", 1), 10)


_Read = Callable[[Reading], tuple[int, float] | None]


def _growth(measured: Measured, name: str, unit: str, read: _Read, limit: float) -> Growth:
    plan = measured.plan
    values = [(reading.at, read(reading)) for reading in measured.readings]
    points = [Point(at, *value) for at, value in values if value is not None]
    apart = thinned(points, plan.point, plan.skip)
    return judged(name, unit, apart, limit)


def _private(role: str) -> _Read:
    return _of_vitals(role, lambda vitals: vitals.rss / _MIB)


def _at_all(read: _Read) -> _Read:
    """Returns the reading as if all lives were one, each starting at the level of the one before."""

    def one_life(reading: Reading) -> tuple[int, float] | None:
        value = read(reading)
        return None if value is None else (_ALL_OF_IT, value[1])

    return one_life


def _descriptors(role: str) -> _Read:
    return _of_vitals(role, lambda vitals: float(vitals.descriptors))


def _of_vitals(role: str, value: Callable[[Vitals], float]) -> _Read:
    """Returns a reader of a process's value; the pid identifies its life."""

    def read(reading: Reading) -> tuple[int, float] | None:
        vitals: Vitals | None = getattr(reading, role)
        return None if vitals is None else (vitals.pid, value(vitals))

    return read


def _plain(name: str, unit: float) -> _Read:
    return lambda reading: (_ALL_OF_IT, getattr(reading, name) / unit)


def _windows(measured: Measured) -> list[Window]:
    return [
        Window(
            round((number + 1) * measured.plan.window, 1),
            kind.name.lower(),
            tuple(round(1e6 * quantile(counts[kind], share), 2) for share in SHARES),
            int(counts[kind].sum()),
        )
        for number, counts in enumerate(measured.windows)
        for kind in Timed
        if np.any(counts[kind])
    ]
