"""What happened in a round, and in all of them."""

from __future__ import annotations

from collections import Counter

import msgspec

from oracle.checker import Violation


class Tally(msgspec.Struct):
    """Counts add up over rounds. deaths, stops: by role. told: pages, by what a process was told of them.

    lives: processes started, by role. returned: seconds from an engine's death until its slot was free again, where
    that was measured; adoptions: seconds from a daemon's fork until it served. pages: what the daemons counted, while
    engines lived, and how many were missed at rest and might have been. disk_use: the most in each round with a disk,
    as a share of the cap.
    """

    deaths: Counter[str] = msgspec.field(default_factory=Counter)
    stops: Counter[str] = msgspec.field(default_factory=Counter)
    lives: Counter[str] = msgspec.field(default_factory=Counter)
    told: Counter[str] = msgspec.field(default_factory=Counter)
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
        """Takes another one in."""
        for field in self.__struct_fields__:
            mine, theirs = getattr(self, field), getattr(other, field)
            if isinstance(mine, list):
                mine.extend(theirs)
            elif isinstance(mine, Counter):
                mine.update(theirs)
            else:
                setattr(self, field, mine + theirs)

    @property
    def engine_deaths(self) -> int:
        """Processes of engines that were killed."""
        return sum(self.deaths[role] for role in ("engine", "scheduler", "rank"))

    @property
    def daemon_deaths(self) -> int:
        """Daemons that were killed."""
        return self.deaths["daemon"]
