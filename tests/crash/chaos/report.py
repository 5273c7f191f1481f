"""Writes the report of a chaos run, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from chaos.round_counts import Tally
from chaos.slot_reuse import LIMIT_S
from oracle.checker import Violation

_PAGES: Final = ("evicted", "disk_written", "disk_read", "disk_evicted", "disk_lost", "missed", "may be missed")


class Spread(msgspec.Struct, frozen=True):
    """The distribution of measured times, in milliseconds."""

    count: int
    median: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Returns the distribution of times in seconds; all numbers are 0 if nothing was measured."""
        if not seconds:
            return cls(0, 0.0, 0.0, 0.0)
        median, p99, most = (float(1e3 * value) for value in np.percentile(seconds, (50, 99, 100)))
        return cls(len(seconds), round(median, 1), round(p99, 1), round(most, 1))

    def __str__(self) -> str:
        return f"median {self.median} ms, p99 {self.p99} ms, at most {self.most} ms ({self.count})"


class SceneReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one scene.

    Attributes:
        rounds: The number of rounds.
        slots: The number of deaths whose slot was measured.
        late: The number of these slots that were in use for more than a second after the death.
        late_share: The same as a share, 0 to 1.
        pages: Pages as the daemons counted them while engines ran, and the pages that were missed and could have been.
        disk_percent: The largest size of the disk tier in percent of its limit.
    """

    rounds: int
    slots: int
    late: int
    late_share: float
    pages: dict[str, int]
    disk_percent: float

    @classmethod
    def of(cls, tally: Tally) -> SceneReport:
        """Returns the results of all rounds of a scene."""
        late = sum(seconds > LIMIT_S for seconds in tally.returned)
        return cls(
            rounds=tally.rounds,
            slots=len(tally.returned),
            late=late,
            late_share=round(late / max(1, len(tally.returned)), 4),
            pages=dict(tally.pages),
            disk_percent=round(100 * max(tally.disk_use, default=0.0), 1),
        )


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The content of report.json.

    Attributes:
        seed: The seed of the planned deaths; a second run with it plans the same deaths, at other moments of its
            daemons.
        responses: The number of pages by the response that processes got about them.
        returned: The time from the death of an engine's process until its slot was free again.
        returned_late: The number of slots that were not free after a second.
        adoptions: The time from the fork of a daemon until it served.
        scenes: The results by name of the scene.
        journals: The folders of journals that were kept.
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
    responses: dict[str, int]
    pages_verified: int
    bytes_verified: int
    steps: int
    samples: int
    returned: Spread
    returned_late: int
    adoptions: Spread
    scenes: dict[str, SceneReport]
    violations: list[Violation]
    journals: list[str]

    @classmethod
    def of(cls, seed: int, tally: Tally, scenes: Mapping[str, Tally], journals: Sequence[Path]) -> Report:
        """Returns the report of a run.

        Args:
            seed: The seed of the run.
            tally: The counts of all scenes.
            scenes: The counts of each scene, by its name.
            journals: The folders of journals that were kept.
        """
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
            responses=dict(sorted(tally.responses.items())),
            pages_verified=tally.responses["loaded"],
            bytes_verified=tally.bytes_verified,
            steps=tally.steps,
            samples=tally.samples,
            returned=Spread.of(tally.returned),
            returned_late=sum(seconds > LIMIT_S for seconds in tally.returned),
            adoptions=Spread.of(tally.adoptions),
            scenes={name: SceneReport.of(part) for name, part in scenes.items()},
            violations=tally.violations,
            journals=[str(folder) for folder in journals],
        )

    def markdown(self) -> str:
        """Returns the report as Markdown."""
        parts = [
            f"# Random death\n\nseed {self.seed}, {self.rounds} rounds, {self.seconds:.0f} s\n",
            _table("killed", self.deaths),
            _table("stopped for a while", self.stops),
            _table("started", self.lives),
            _table("pages by response", self.responses),
            f"{self.bytes_verified / 1e9:.1f} GB were compared byte by byte; {self.samples} samples were checked.",
            f"The slot of a dead process was free after: {self.returned}; {self.returned_late} took over a second.",
            "Only deaths after which the daemon ran for over a second are measured.",
            f"A new daemon served after: {self.adoptions}.\n",
            _scenes(self.scenes),
            f"## Violations: {len(self.violations)}\n",
            *(f"- {violation}" for violation in self.violations),
            *(f"- journals: {folder}" for folder in self.journals),
        ]
        return "\n".join(parts) + "\n"


def _table(head: str, counts: dict[str, int]) -> str:
    rows = "\n".join(f"| {name} | {count} |" for name, count in counts.items())
    return f"| {head} | how many |\n|---|---:|\n{rows}\n"


def _scenes(scenes: Mapping[str, SceneReport]) -> str:
    """Returns the table of scenes: pages as the daemons counted them, slots and disk usage."""
    head = [
        "scene",
        "rounds",
        *(name.replace("_", " ") for name in _PAGES),
        "disk, % of its limit",
        "slots",
        "over 1 s",
    ]
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for name, place in scenes.items():
        late = f"{place.late} ({100 * place.late_share:.1f} %)"
        pages = [place.pages.get(kind, 0) for kind in _PAGES]
        row = [name, place.rounds, *pages, place.disk_percent, place.slots, late]
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines) + "\n"
