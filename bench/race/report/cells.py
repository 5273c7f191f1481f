"""Formats numbers, ratios and pages served for tables and sentences."""

from __future__ import annotations

import statistics

from median_interval import median_interval
from race.engine_process import Served
from race.report.ratios import Comparison, Verdict
from race.results import Figures, Run


def value_of(figures: Figures, name: str) -> str:
    """Returns the median of a system with its interval; "" if it has no values."""
    rounds = figures.rounds.get(name)
    if not rounds:
        return ""
    low, high = median_interval(rounds)
    return f"{number(statistics.median(rounds))} ({number(low)} to {number(high)})"


def ratio_of(one: Comparison) -> str:
    """Returns a ratio with its interval, marked if pagetier is behind."""
    text = f"{number(one.value)} ({number(one.low)} to {number(one.high)})"
    return f"**{text}**" if one.verdict is Verdict.BEHIND else text


def number(value: float) -> str:
    """Returns a number with three digits, or with all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def load_of(run: Run) -> str:
    """Returns a sentence about the load of the machine."""
    before, after = run.load
    return f"The load average over one minute was {before:.1f} at the beginning and {after:.1f} at the end"


def milliseconds(seconds: float) -> str:
    """Returns a time in milliseconds."""
    return f"{number(1e3 * seconds)} ms"


def served_text(served: Served) -> str:
    """Returns what was served in words; wrong pages are marked."""
    parts = [f"{served.right} right"] if served.right else []
    parts += [f"**{served.wrong} wrong**"] if served.wrong else []
    parts += [f"{served.missed} missed"] if served.missed else []
    return ", ".join(parts) or "nothing asked"
