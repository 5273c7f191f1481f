"""Invented speeds of copy paths for runs of each length."""

from __future__ import annotations

from collections.abc import Mapping

from pagetier.client.cli.calibrate.measure import RUNS
from pagetier.client.cli.calibrate.thresholds import Speed

Table = Mapping[str, list[float]]


def speeds(table: Table, lengths: tuple[int, ...] = RUNS) -> list[Speed]:
    return [
        Speed(path, nbytes, value) for path, row in table.items() for nbytes, value in zip(lengths, row, strict=False)
    ]


def saturating(peak: float, cost_bytes: float) -> list[float]:
    """Returns speeds for a path whose fixed cost per run is the time that `cost_bytes` take."""
    return [peak * nbytes / (nbytes + cost_bytes) for nbytes in RUNS]
