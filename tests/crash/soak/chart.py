"""Draws lines over time as SVG: panels below each other with one axis of time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape

import msgspec

_WIDTH: Final = 960
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 150, 26, 20
_HEIGHT: Final = 150
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
_MARKED: Final = "#cccccc"


class Line(msgspec.Struct, frozen=True):
    """A line of a panel: `at` in seconds, `values` in the panel's unit; a value that is not finite interrupts it."""

    name: str
    at: Sequence[float]
    values: Sequence[float]


class Panel(msgspec.Struct, frozen=True):
    """A panel with its lines. Its scale has equal steps for equal ratios, or begins at 0."""

    title: str
    lines: Sequence[Line]
    scale: Scale


class Scale(msgspec.Struct, frozen=True):
    """A linear scale from the smallest to the largest value shown."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Returns the position of a value: 0 at the bottom, 1 at the top."""
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Returns about four ticks."""
        step = _round((self.high - self.low) / 4)
        first = math.ceil(self.low / step)
        return [step * at for at in range(first, int(self.high / step) + 1)]


class Ratios(Scale, frozen=True):
    """A logarithmic scale; `low` is above 0."""

    def place(self, value: float) -> float:
        """Returns the position of a value: 0 at the bottom, 1 at the top."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """Returns the powers of ten."""
        powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
        return [10.0**power for power in powers]


def from_zero(lines: Iterable[Line]) -> Scale:
    """Returns a scale that shows all values, and 0."""
    return Scale(0.0, 1.08 * max(_values(lines), default=1.0) or 1.0)


def in_ratios(lines: Iterable[Line]) -> Ratios:
    """Returns a scale that shows all values above 0."""
    values = [value for value in _values(lines) if value > 0] or [1.0]
    return Ratios(min(values) / 1.5, max(values) * 1.5)


def chart(title: str, seconds: float, panels: Sequence[Panel], marks: Sequence[float] = ()) -> str:
    """Returns an SVG file. `marks` are times in seconds that are marked in all panels."""
    height = 34 + len(panels) * (_HEIGHT + _TOP + _BOTTOM)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"',
        ' font-processes="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        top = 34 + _TOP + number * (_HEIGHT + _TOP + _BOTTOM)
        parts += _panel(panel, top, max(seconds, 1e-9), marks)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, top: float, seconds: float, marks: Sequence[float]) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, top + _HEIGHT
    yield f'<text x="{_LEFT}" y="{top - 8}" font-weight="bold">{escape(panel.title)}</text>'
    for mark in marks:
        x = _x(mark, seconds)
        yield f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="{_MARKED}" stroke-dasharray="2 2"/>'
    for tick in panel.scale.ticks():
        y = _y(panel.scale, tick, top)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#eeeeee"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
    for tick in Scale(0.0, seconds / 60).ticks():
        x = _x(60 * tick, seconds)
        yield f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{tick:g} min</text>'
    yield f'<rect x="{_LEFT}" y="{top}" width="{right - _LEFT}" height="{_HEIGHT}" fill="none" stroke="#888888"/>'
    for number, line in enumerate(panel.lines):
        colour = _COLOURS[number % len(_COLOURS)]
        yield f'<text x="{right + 8}" y="{top + 12 + 14 * number}" fill="{colour}">{escape(line.name)}</text>'
        yield f'<path d="{_path(line, panel.scale, top, seconds)}" fill="none" stroke="{colour}" stroke-width="1.2"/>'


def _path(line: Line, scale: Scale, top: float, seconds: float) -> str:
    drawn, pen = [], "M"
    for at, value in zip(line.at, line.values, strict=True):
        if not math.isfinite(value) or (value <= 0 and isinstance(scale, Ratios)):
            pen = "M"
            continue
        drawn.append(f"{pen}{_x(at, seconds):.1f} {_y(scale, value, top):.1f}")
        pen = "L"
    return "".join(drawn)


def _x(at: float, seconds: float) -> float:
    return _LEFT + (_WIDTH - _RIGHT - _LEFT) * min(1.0, at / seconds)


def _y(scale: Scale, value: float, top: float) -> float:
    return top + _HEIGHT * (1 - scale.place(value))


def _values(lines: Iterable[Line]) -> list[float]:
    return [value for line in lines for value in line.values if math.isfinite(value)]


def _round(step: float) -> float:
    """Returns 1, 2 or 5 times a power of ten, at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * 0.999)
