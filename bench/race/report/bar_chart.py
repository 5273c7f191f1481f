"""Draws bars as an SVG: an axis for each unit, a group for each case, a bar and the interval of each system."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

import msgspec

from median_interval import median_interval
from race.report.cells import number
from race.report.systems import in_order
from race.results import Figures

COLOURS = {"pagetier": "#1f77b4", "LMCache": "#d62728", "vLLM native": "#2ca02c", "files": "#7f7f7f", "vLLM": "#9467bd"}
BETTER = {"low": "shorter is better", "high": "longer is better"}
_WIDTH, _LEFT, _RIGHT = 900, 110, 80
_LINE, _BAR, _GAP = 16, 12, 10
_TITLE, _HEAD, _AXIS = 34, 24, 26
_FONT = 'font-family="sans-serif" font-size="12"'
_RIGHT_ALIGNED, _CENTRED, _BOLD = 'text-anchor="end"', 'text-anchor="middle"', 'font-weight="bold"'


_FEW, _MANY = 5, 50  # ticks of a linear axis at least; the ratio from which on an axis is logarithmic
_STEPS = (1, 2, 5)


class Axis(msgspec.Struct, frozen=True):
    """An axis from zero, on which bars are as long as their values are large, or a logarithmic one.

    Attributes:
        low: The value at the left end of a logarithmic axis; 0 for one from zero.
        high: The value at its right end.
    """

    low: float
    high: float

    def place(self, value: float) -> float:
        """Returns the horizontal place of a value."""
        if self.low:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = value / self.high
        return _LEFT + min(share, 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> Iterator[float]:
        """Yields the values to draw lines at."""
        yield from self._powers() if self.low else self._multiples()

    def _powers(self) -> Iterator[float]:
        """Yields the powers of ten, and also their multiples by 2 and 5 where the axis is short."""
        steps = _STEPS if self.high / self.low < 3000 else (1,)
        for power in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1):
            yield from (step * 10.0**power for step in steps if self.low <= step * 10.0**power <= self.high)

    def _multiples(self) -> Iterator[float]:
        step = tick_step(self.high)
        yield from (step * number for number in range(round(self.high / step) + 1))


def tick_step(high: float) -> float:
    """Returns the largest step of 1, 2 or 5 times a power of ten with which a linear axis has enough ticks."""
    steps = [step * 10.0**power for power in range(-9, 10) for step in _STEPS]
    return max(step for step in steps if step * _FEW <= high)


def bar_chart(title: str, cases: Sequence[Figures]) -> str:
    """Returns the picture of a contest. Cases of the same unit share an axis."""
    body, top = [_text(10, 22, title, _BOLD)], float(_TITLE)
    for unit, best in dict.fromkeys((case.unit, case.best) for case in cases):
        panel = [case for case in cases if (case.unit, case.best) == (unit, best)]
        body += _panel(f"{unit}, {BETTER[best]}", panel, top)
        top += _height(panel)
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top:.0f}" width="{_WIDTH}">'
    return "\n".join([begin, '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>", ""])


def _height(cases: Sequence[Figures]) -> float:
    return _HEAD + sum(_LINE * (1 + len(case.rounds)) + _GAP for case in cases) + _AXIS


def _panel(head: str, cases: Sequence[Figures], top: float) -> Iterator[str]:
    """Yields the cases of one unit over their axis."""
    axis = _axis(cases)
    yield _text(10, top + 14, f"{head}; logarithmic" if axis.low else head, _BOLD)
    yield from _grid(axis, top + _HEAD, top + _height(cases) - _AXIS)
    at = top + _HEAD
    for case in cases:
        yield _text(_LEFT, at + _BAR, case.case)
        at += _LINE
        for name in in_order(case.rounds):
            yield from _bar(name, case.rounds[name], at, axis)
            at += _LINE
        at += _GAP


def _axis(cases: Sequence[Figures]) -> Axis:
    """Returns an axis that ends at a tick, and has room for the intervals of all bars."""
    values = [value for case in cases for rounds in case.rounds.values() for value in _drawn(rounds) if value > 0]
    low, high = min(values, default=1.0), max(values, default=1.0)
    if high < _MANY * low:
        step = tick_step(high)
        return Axis(0.0, step * math.ceil(high / step))
    begin = 10.0 ** math.floor(math.log10(low / 1.2))
    ends = (step * 10.0**power for power in range(-9, 10) for step in _STEPS)
    return Axis(begin, next(end for end in ends if end >= high and end > begin))


def _drawn(rounds: Sequence[float]) -> tuple[float, ...]:
    return (statistics.median(rounds), *median_interval(rounds)) if rounds else ()


def _grid(axis: Axis, top: float, bottom: float) -> Iterator[str]:
    for value in axis.ticks():
        at = axis.place(value)
        yield f'<line x1="{at:.1f}" y1="{top:.1f}" x2="{at:.1f}" y2="{bottom:.1f}" stroke="#dddddd"/>'
        yield _text(at, bottom + 13, f"{value:,g}", _CENTRED)


def _bar(name: str, rounds: Sequence[float], at: float, axis: Axis) -> Iterator[str]:
    """Yields the name, the bar, the interval and the median of a system, none of them over another."""
    yield _text(_LEFT - 8, at + 10, name, _RIGHT_ALIGNED)
    if not rounds:
        return
    end, first, last = map(axis.place, _drawn(rounds))
    colour, middle = COLOURS.get(name, "#ff7f0e"), at + _BAR / 2
    yield f'<rect x="{_LEFT}" y="{at:.1f}" width="{end - _LEFT:.1f}" height="{_BAR}" fill="{colour}"/>'
    yield f'<line x1="{first:.1f}" y1="{middle:.1f}" x2="{last:.1f}" y2="{middle:.1f}" stroke="black"/>'
    yield _text(max(end, last) + 5, at + 10, number(statistics.median(rounds)))


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {_FONT} {more}>{escape(words)}</text>'
