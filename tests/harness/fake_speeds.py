"""Speeds of ways for runs of each length, as a table made by hand."""

from __future__ import annotations

from collections.abc import Mapping

from pagetier.client.cli.calibrate.measure import RUNS
from pagetier.client.cli.calibrate.thresholds import Speed

Table = Mapping[str, list[float]]


def speeds(table: Table, lengths: tuple[int, ...] = RUNS) -> list[Speed]:
    return [
        Speed(way, nbytes, value) for way, row in table.items() for nbytes, value in zip(lengths, row, strict=False)
    ]


def saturating(peak: float, cost_bytes: float) -> list[float]:
    """A way that takes as long for a run as it takes for so many bytes, and the bytes of the run."""
    return [peak * nbytes / (nbytes + cost_bytes) for nbytes in RUNS]
