"""What a storm has to say for itself: for people, and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from oracle.checker import Violation

from .slots import LIMIT_S
from .tally import Tally


class Spread(msgspec.Struct, frozen=True):
    """Of measured times, in milliseconds."""

    count: int
    median: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """All zero where nothing was measured."""
        if not seconds:
            return cls(0, 0.0, 0.0, 0.0)
        median, p99, most = (float(1e3 * value) for value in np.percentile(seconds, (50, 99, 100)))
        return cls(len(seconds), round(median, 1), round(p99, 1), round(most, 1))

    def __str__(self) -> str:
        return f"median {self.median} ms, p99 {self.p99} ms, at most {self.most} ms ({self.count})"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of report.json. seed: has the same deaths planned again, at another run's moments.

    returned: from the death of an engine's process until its slot was free again. adoptions: from a daemon's fork until
    it served. journals: folders that were kept.
    """

    seed: int
    seconds: float
    rounds: int
    engine_deaths: int
    daemon_deaths: int
    worker_deaths: int
    deaths: dict[str, int]
    stops: dict[str, int]
    lives: dict[str, int]
    told: dict[str, int]
    pages_verified: int
    bytes_verified: int
    steps: int
    samples: int
    returned: Spread
    returned_late: int
    adoptions: Spread
    violations: list[Violation]
    journals: list[str]

    @classmethod
    def of(cls, seed: int, tally: Tally, journals: Sequence[Path]) -> Report:
        """journals: folders that were kept."""
        return cls(
            seed=seed,
            seconds=round(tally.seconds, 1),
            rounds=tally.rounds,
            engine_deaths=tally.engine_deaths,
            daemon_deaths=tally.daemon_deaths,
            worker_deaths=tally.deaths["disk worker"],
            deaths=dict(sorted(tally.deaths.items())),
            stops=dict(sorted(tally.stops.items())),
            lives=dict(sorted(tally.lives.items())),
            told=dict(sorted(tally.told.items())),
            pages_verified=tally.told["loaded"],
            bytes_verified=tally.bytes_verified,
            steps=tally.steps,
            samples=tally.samples,
            returned=Spread.of(tally.returned),
            returned_late=sum(seconds > LIMIT_S for seconds in tally.returned),
            adoptions=Spread.of(tally.adoptions),
            violations=tally.violations,
            journals=[str(folder) for folder in journals],
        )

    def markdown(self) -> str:
        """Tables for people."""
        parts = [
            f"# Random death\n\nseed {self.seed}, {self.rounds} rounds, {self.seconds:.0f} s\n",
            _table("killed", self.deaths),
            _table("stopped for a while", self.stops),
            _table("started", self.lives),
            _table("told, in pages", self.told),
            f"{self.bytes_verified / 1e9:.1f} GB were compared byte by byte, caps in {self.samples} samples.",
            f"A dead process's slot was free again after: {self.returned}; {self.returned_late} took over a second.",
            f"A daemon served after: {self.adoptions}.\n",
            f"## Violations: {len(self.violations)}\n",
            *(f"- {violation}" for violation in self.violations),
            *(f"- journals: {folder}" for folder in self.journals),
        ]
        return "\n".join(parts) + "\n"


def _table(head: str, counts: dict[str, int]) -> str:
    rows = "\n".join(f"| {name} | {count} |" for name, count in counts.items())
    return f"| {head} | how many |\n|---|---:|\n{rows}\n"
