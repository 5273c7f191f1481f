"""Draws hit ratios over the size of the cache as SVG: a panel for each trace, a line for each policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

import msgspec

COLORS: Final = {
    "optimum": "#6b7280",
    "cadence": "#1d4ed8",
    "lru": "#b45309",
    "arc": "#0f766e",
    "s3fifo": "#a21caf",
}
"""Readable on white, also without the color of red and green."""
DASHES: Final = {"optimum": "5 4", "arc": "2 3", "s3fifo": "8 3"}
_WIDTH, _HEIGHT = 300, 220
_LEFT, _TOP, _RIGHT, _BOTTOM = 44, 34, 14, 40
_LEGEND: Final = 28


class Panel(msgspec.Struct, frozen=True):
    """A trace, with the points of each policy: size and hit ratio, both in per cent."""

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def picture(panels: Sequence[Panel]) -> str:
    """Returns the SVG."""
    width, height = _WIDTH * len(panels), _HEIGHT + _LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="11" role="img" aria-label="Hit ratio over the size of the cache">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate({number * _WIDTH} 0)">', *_panel(panel), "</g>"]
    parts += [*_legend([policy for policy in COLORS if any(policy in panel.lines for panel in panels)]), "</svg>"]
    return "\n".join(parts) + "\n"


def _panel(panel: Panel) -> Iterator[str]:
    shares = sorted({share for points in panel.lines.values() for share, _ in points})
    top = 10 * math.ceil(max(ratio for points in panel.lines.values() for _, ratio in points) / 10) or 10
    yield f'<text x="{_LEFT}" y="18" font-weight="bold">{escape(panel.title)}</text>'
    yield from _axes(shares, top)
    for policy, points in panel.lines.items():
        path = " ".join(f"{_x(share, shares):.1f},{_y(ratio, top):.1f}" for share, ratio in points)
        dash = f' stroke-dasharray="{DASHES[policy]}"' if policy in DASHES else ""
        yield f'<polyline points="{path}" fill="none" stroke="{COLORS[policy]}" stroke-width="2"{dash}/>'


def _axes(shares: Sequence[float], top: float) -> Iterator[str]:
    for step in range(5):
        ratio = top * step / 4
        y = _y(ratio, top)
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#374151">{ratio:g} %</text>'
    for share in shares:
        x = _x(share, shares)
        yield f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle" fill="#374151">{share:g}</text>'
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    about = "size of the cache, % of all different pages"
    yield f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle" fill="#374151">{about}</text>'


def _legend(policies: Sequence[str]) -> Iterator[str]:
    for at, policy in enumerate(policies):
        x, y = _LEFT + 90 * at, _HEIGHT + _LEGEND / 2
        dash = f' stroke-dasharray="{DASHES[policy]}"' if policy in DASHES else ""
        yield f'<line x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}" stroke="{COLORS[policy]}" stroke-width="2"{dash}/>'
        yield f'<text x="{x + 30}" y="{y + 4}">{policy}</text>'


def _x(share: float, shares: Sequence[float]) -> float:
    """Returns the place of a size; its scale is logarithmic."""
    spread = math.log(shares[-1] / shares[0]) or 1.0
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(share / shares[0]) / spread


def _y(ratio: float, top: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - ratio / top)
