"""Draws the predicted hit ratio over the size of the cache as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from pagetier.daemon.stats.size_advice import SizeAdvice
from pagetier.shm.units import format_size

_WIDTH: Final = 640
_HEIGHT: Final = 360
_LEFT, _TOP, _RIGHT, _BOTTOM = 52, 52, 20, 52
_HALF_LABEL: Final = 20  # at least half the width of "knee"
_LINE, _CEILING, _GRID, _TEXT = "#b45309", "#6b7280", "#e5e7eb", "#374151"
_FOUND: Final = "#1d4ed8"


def picture(advice: SizeAdvice) -> str:
    """Returns the SVG: the curve, the ceiling of an endless cache, the arena with what it finds, and the knee."""
    sizes = [size for size, _ in advice.curve]
    points = " ".join(f"{_x(size, sizes):.1f},{_y(ratio):.1f}" for size, ratio in advice.curve)
    least = "at least " if advice.total.memory[0].lower_bound else ""
    found, ceiling = _y(advice.total.hit_ratio), _y(advice.total.endless_hit_ratio)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
        ' font-family="sans-serif" font-size="12" role="img" aria-label="Predicted hit ratio over the size">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-weight="bold" fill="{_TEXT}">Predicted hit ratio, of whole prompts</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="20" text-anchor="end" fill="{_LINE}">{least}LRU</text>',
        f'<text x="{_WIDTH - _RIGHT - 90}" y="20" text-anchor="end" fill="{_FOUND}">now</text>',
        f'<text x="{_WIDTH - _RIGHT - 170}" y="20" text-anchor="end" fill="{_CEILING}">dashed: endless cache</text>',
        *_grid(sizes),
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{ceiling:.1f}" y2="{ceiling:.1f}" stroke="{_CEILING}"'
        ' stroke-dasharray="5 4"/>',
        f'<polyline points="{points}" fill="none" stroke="{_LINE}" stroke-width="2"/>',
        *_mark(_x(advice.arena_bytes, sizes), "now", _HEIGHT - _BOTTOM + 14),
        f'<circle cx="{_x(advice.arena_bytes, sizes):.1f}" cy="{found:.1f}" r="4" fill="{_FOUND}"/>',
        *(_mark(_x(advice.knee_bytes, sizes), "knee", _TOP - 6) if advice.knee_bytes else ()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _grid(sizes: Sequence[int]) -> Iterator[str]:
    for percent in range(0, 101, 20):
        y = _y(percent / 100)
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="{_TEXT}">{percent} %</text>'
    for size in sizes[::8]:
        x = _x(size, sizes)
        yield f'<text x="{x:.1f}" y="{_HEIGHT - 18}" text-anchor="middle" fill="{_TEXT}">{format_size(size)}</text>'


def _mark(x: float, label: str, y: int) -> Iterator[str]:
    yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="{_CEILING}"/>'
    yield f'<text x="{x:.1f}" y="{y}" text-anchor="{_anchor(x)}" fill="{_TEXT}">{label}</text>'


def _anchor(x: float) -> str:
    """Returns the anchor with which a label at x stays between the ends of the axis, and off the labels beside it."""
    if x < _LEFT + _HALF_LABEL:
        return "start"
    return "end" if x > _WIDTH - _RIGHT - _HALF_LABEL else "middle"


def _x(size: int, sizes: Sequence[int]) -> float:
    """Returns the place of a size; its scale is logarithmic."""
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])


def _y(ratio: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - ratio)
