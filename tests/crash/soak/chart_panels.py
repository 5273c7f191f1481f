"""Lays out the chart of a soak."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from soak.chart import Line, Panel, chart, from_zero, in_ratios
from soak.report import Report, Window
from soak.sampling import Reading
from soak.slowdown_test import SHARES

_MIB: Final = 1 << 20
_MOST_POINTS: Final = 600


def picture(report: Report, readings: Sequence[Reading]) -> str:
    """Returns the chart as SVG. Each daemon's death is marked."""
    some = readings[:: max(1, len(readings) // _MOST_POINTS)]
    panels = [
        *(_latency(call, control, report.windows) for call, control in (("match", "gather"), ("reserve", "echo"))),
        _measured("private memory (RssAnon), MiB", some, {role: _memory(role) for role in _ROLES}),
        _measured("descriptors; readers of LMDB", some, _handles()),
        _measured("taken, MiB", some, {"disk": lambda r: r.disk / _MIB, "/dev/shm": lambda r: r.shm / _MIB}),
    ]
    title = f"{report.seconds / 60:.0f} minutes with a death or a fault every few seconds; dashed: death of a daemon"
    return chart(title, report.seconds, panels, _deaths(readings))


_ROLES: Final = ("daemon", "worker", "probe")
_Value = Callable[[Reading], float]


def _latency(call: str, control: str, windows: Sequence[Window]) -> Panel:
    lines = [_quantile(call, at, windows) for at in range(len(SHARES))] + [_quantile(control, 0, windows)]
    return Panel(f"{call}, µs; with the fixed reference work ({control})", lines, in_ratios(lines))


def _quantile(call: str, which: int, windows: Sequence[Window]) -> Line:
    its = [window for window in windows if window.call == call]
    name = f"{call} p{100 * SHARES[which]:g}"
    return Line(name, [window.at for window in its], [window.quantiles[which] for window in its])


def _measured(title: str, readings: Sequence[Reading], values: dict[str, _Value]) -> Panel:
    at = [reading.at for reading in readings]
    lines = [Line(name, at, [value(reading) for reading in readings]) for name, value in values.items()]
    return Panel(title, lines, from_zero(lines))


def _memory(role: str) -> _Value:
    return lambda reading: _of(reading, role, "rss") / _MIB


def _handles() -> dict[str, _Value]:
    values: dict[str, _Value] = {role: _descriptors(role) for role in _ROLES}
    return values | {"LMDB readers": lambda reading: reading.readers}


def _descriptors(role: str) -> _Value:
    return lambda reading: _of(reading, role, "descriptors")


def _of(reading: Reading, role: str, name: str) -> float:
    vitals = getattr(reading, role)
    return math.nan if vitals is None else float(getattr(vitals, name))


def _deaths(readings: Sequence[Reading]) -> list[float]:
    """Returns the times at which the daemon was a new one."""
    known = [(reading.at, reading.daemon.pid) for reading in readings if reading.daemon]
    return [at for (_, before), (at, now) in pairwise(known) if now != before]
