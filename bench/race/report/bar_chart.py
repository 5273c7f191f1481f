"""Draws bars as an SVG: a group for each case, a bar for each system, and the interval of its median."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from median_interval import median_interval
from race.results import Figures

COLOURS = {"pagetier": "#1f77b4", "LMCache": "#d62728", "vLLM native": "#2ca02c", "files": "#7f7f7f", "vLLM": "#9467bd"}
_WIDTH, _LEFT, _ROW, _GAP, _TOP, _RIGHT = 900, 330, 15, 12, 40, 130
_FONT = 'font-family="sans-serif" font-size="12"'


def bar_chart(title: str, cases: Sequence[Figures]) -> str:
    """Returns the picture of cases with the same unit. The axis is logarithmic: a ratio is the same length anywhere."""
    medians = [statistics.median(rounds) for case in cases for rounds in case.rounds.values()]
    positive = [value for value in medians if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)) + 1e-9)
    rows = sum(len(case.rounds) for case in cases)
    height = _TOP + rows * _ROW + len(cases) * _GAP + 20
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}">'
    body = [begin, '<rect width="100%" height="100%" fill="white"/>', _text(10, 22, title, "font-weight='bold'")]
    body += _grid(low, high, height)
    body += _groups(cases, low, high)
    return "\n".join([*body, "</svg>", ""])


def _grid(low: int, high: int, height: int) -> Iterator[str]:
    for power in range(low, high + 1):
        at = _place(10.0**power, low, high)
        yield f'<line x1="{at:.1f}" y1="{_TOP - 6}" x2="{at:.1f}" y2="{height - 20}" stroke="#dddddd"/>'
        yield _text(at, height - 6, f"{10.0**power:g}", "text-anchor='middle'")


def _groups(cases: Sequence[Figures], low: int, high: int) -> Iterator[str]:
    at = float(_TOP)
    for case in cases:
        yield _text(10, at + 11, f"{case.case} ({case.unit})")
        for name, rounds in case.rounds.items():
            yield from _bar(name, rounds, at, low, high)
            at += _ROW
        at += _GAP


def _bar(name: str, rounds: Sequence[float], at: float, low: int, high: int) -> Iterator[str]:
    median = statistics.median(rounds)
    end = _place(median, low, high)
    colour = COLOURS.get(name, "#ff7f0e")
    yield f'<rect x="{_LEFT}" y="{at:.1f}" width="{end - _LEFT:.1f}" height="{_ROW - 3}" fill="{colour}"/>'
    first, last = (_place(value, low, high) for value in median_interval(rounds))
    middle = at + (_ROW - 3) / 2
    yield f'<line x1="{first:.1f}" y1="{middle:.1f}" x2="{last:.1f}" y2="{middle:.1f}" stroke="black"/>'
    yield _text(max(end, last) + 5, at + 11, f"{name} {median:.3g}")


def _place(value: float, low: int, high: int) -> float:
    """Returns the horizontal place of a value."""
    share = (math.log10(max(value, 10.0**low)) - low) / max(1, high - low)
    return _LEFT + min(max(share, 0.0), 1.0) * (_WIDTH - _LEFT - _RIGHT)


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {_FONT} {more}>{escape(words)}</text>'
