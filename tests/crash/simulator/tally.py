"""Counts the events of a round, and of all rounds."""

from __future__ import annotations

from collections import Counter

import msgspec

from oracle.checker import Violation


class Tally(msgspec.Struct):
    """Counts that can be added up over rounds.

    Attributes:
        deaths: Processes killed, by role.
        stops: Processes stopped for a while, by role.
        lives: Processes started, by role.
        responses: Pages, by the response that a process got about them.
        pages: Pages as the daemons counted them while engines ran, and the pages that were missed at rest and could
            have been.
        returned: Seconds from an engine's death until its slot was free again, where that was measured.
        adoptions: Seconds from a daemon's fork until it served.
        disk_use: The largest size of the disk tier in each round that has a disk, as a share of the limit.
        steps: The number of requests of engines.
    """

    deaths: Counter[str] = msgspec.field(default_factory=Counter)
    stops: Counter[str] = msgspec.field(default_factory=Counter)
    lives: Counter[str] = msgspec.field(default_factory=Counter)
    responses: Counter[str] = msgspec.field(default_factory=Counter)
    pages: Counter[str] = msgspec.field(default_factory=Counter)
    returned: list[float] = msgspec.field(default_factory=list)
    adoptions: list[float] = msgspec.field(default_factory=list)
    disk_use: list[float] = msgspec.field(default_factory=list)
    violations: list[Violation] = msgspec.field(default_factory=list)
    samples: int = 0
    bytes_verified: int = 0
    steps: int = 0
    rounds: int = 0
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        """Adds the counts of another tally."""
        for field in self.__struct_fields__:
            mine, theirs = getattr(self, field), getattr(other, field)
            if isinstance(mine, Counter):
                mine.update(theirs)
            else:
                setattr(self, field, mine + theirs)

    @property
    def engine_deaths(self) -> int:
        """The number of engine processes that were killed."""
        return sum(self.deaths[role] for role in ("engine", "busy engine", "fleet engine", "scheduler", "rank"))

    @property
    def daemon_deaths(self) -> int:
        """The number of daemons that were killed."""
        return self.deaths["daemon"]

    @property
    def work(self) -> Counter[str]:
        """The counts of which a run may require a minimum."""
        deaths = Counter(engine_deaths=self.engine_deaths, daemon_deaths=self.daemon_deaths)
        return deaths + Counter(
            rounds=self.rounds,
            evictions=self.pages["evicted"],
            disk_reads=self.pages["disk_read"],
            fleet_reads=self.pages["fleet read"],
        )

    def __str__(self) -> str:
        deaths = f"{self.engine_deaths} engine and {self.daemon_deaths} daemon deaths"
        return f"{self.steps} requests, {deaths}, {len(self.violations)} violations"
