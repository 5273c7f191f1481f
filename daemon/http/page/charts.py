"""The pictures of the page as SVG. Their colors are classes, which the style sets for light and dark screens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from pagetier.daemon.http.page.html import Html, element
from pagetier.daemon.http.page.token_history import MINUTES, Totals
from pagetier.daemon.stats.size_advice import SizeAdvice
from pagetier.shm.units import format_size

TIERS: Final = ("memory", "disk", "fleet", "missed")
"""The fields of Totals that are tokens, and the classes of their colors."""

_WIDTH, _HEIGHT = 400, 240
_LEFT, _TOP, _RIGHT, _BOTTOM = 50, 26, 12, 40
_FLOOR: Final = _HEIGHT - _BOTTOM
# Points of the curve: at the size that is configured, a sixteenth and sixteen times of it. Labels of more sizes would
# touch, or be cut at the end.
_FIRST_LABEL: Final = 4
_LABEL_EVERY: Final = 16
_HALF_LABEL: Final = 20  # at least half the width of "knee"


def bar(share: float, color: str) -> Html:
    """Returns a bar that is filled to this share. What it shows stands beside it as a text."""
    full = element("rect", width=100 * min(1.0, max(0.0, share)), height=8, class_=color)
    track = element("rect", width=100, height=8, class_="track")
    box = {"viewBox": "0 0 100 8", "preserveAspectRatio": "none"}
    return element("svg", track, full, class_="bar", aria_hidden="true", **box)


def swatch(color: str) -> Html:
    """Returns a square of a color, for a legend."""
    square = element("rect", width=10, height=10, class_=color)
    return element("svg", square, class_="swatch", viewBox="0 0 10 10", aria_hidden="true")


def hour_chart(minutes: Sequence[Totals], about: str) -> Html:
    """Returns the share of tokens by the tier that gave them, a column for each minute with lookups.

    Args:
        minutes: The last 60 minutes or fewer, oldest first.
        about: What the picture says, for screen readers.
    """
    areas = (element("path", d=_columns(minutes, tier), class_=color) for tier, color in enumerate(TIERS))
    ages = (("60 min ago", "start", 0.0), ("30", "middle", 0.5), ("now", "end", 1.0))
    below = (_label(_LEFT + _plot_width() * at, _FLOOR + 16, text, anchor) for text, anchor, at in ages)
    return _picture(about, *_percents(), *areas, *below)


def _columns(minutes: Sequence[Totals], tier: int) -> str:
    """Returns the path of a tier's part of all columns."""
    width, parts = _plot_width() / MINUTES, []
    for place, minute in enumerate(minutes, MINUTES - len(minutes)):
        if minute.tokens and minute[tier]:
            bottom = _y(sum(minute[:tier]) / minute.tokens)
            height = bottom - _y(sum(minute[: tier + 1]) / minute.tokens)
            parts.append(f"M{_LEFT + place * width:.1f} {bottom:.1f}v{-height:.1f}h{width:.1f}v{height:.1f}z")
    return "".join(parts)


def curve_chart(advice: SizeAdvice, about: str) -> Html:
    """Returns the predicted hit ratio over the size, with what is found now, the knee, and an endless cache.

    Args:
        advice: What is known of the lookups.
        about: What the picture says, for screen readers.
    """
    sizes = [size for size, _ in advice.curve]
    points = " ".join(f"{_x(size, sizes):.1f},{_y(ratio):.1f}" for size, ratio in advice.curve)
    ceiling, found = _y(advice.total.endless_hit_ratio), _y(advice.total.hit_ratio)
    parts = [
        *_percents(),
        *_sizes(sizes),
        element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=ceiling, y2=ceiling, class_="ceiling"),
        element("polyline", points=points, class_="curve"),
        *_mark(_x(advice.arena_bytes, sizes), "now", _FLOOR + 14),
        *(_mark(_x(advice.knee_bytes, sizes), "knee", _TOP - 6) if advice.knee_bytes else ()),
        element("circle", cx=_x(advice.arena_bytes, sizes), cy=found, r=5, class_="found"),
    ]
    return _picture(about, *parts)


def _sizes(sizes: Sequence[int]) -> Iterator[Html]:
    for size in sizes[_FIRST_LABEL::_LABEL_EVERY]:
        yield _label(_x(size, sizes), _FLOOR + 32, format_size(size), "middle")


def _mark(x: float, label: str, y: float) -> Iterator[Html]:
    yield element("line", x1=x, x2=x, y1=_TOP, y2=_FLOOR, class_="mark")
    yield _label(x, y, label, _anchor(x))


def _anchor(x: float) -> str:
    """Returns the anchor with which a label at x stays between the ends of the axis, and off the labels beside it."""
    if x < _LEFT + _HALF_LABEL:
        return "start"
    return "end" if x > _WIDTH - _RIGHT - _HALF_LABEL else "middle"


def _percents() -> Iterator[Html]:
    for percent in range(0, 101, 25):
        y = _y(percent / 100)
        yield element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid")
        yield _label(_LEFT - 6, y + 4, f"{percent} %", "end")


def _label(x: float, y: float, text: str, anchor: str) -> Html:
    return element("text", text, x=x, y=y, text_anchor=anchor)


def _picture(about: str, *parts: Html) -> Html:
    return element("svg", *parts, class_="chart", viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=about)


def _plot_width() -> float:
    return float(_WIDTH - _LEFT - _RIGHT)


def _x(size: int, sizes: Sequence[int]) -> float:
    """Returns the place of a size; its scale is logarithmic."""
    return _LEFT + _plot_width() * math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])


def _y(ratio: float) -> float:
    return _TOP + (_FLOOR - _TOP) * (1 - ratio)
