"""The daemon's counters of lookups and of tokens by where they were found."""

from __future__ import annotations

from typing import NamedTuple

from running_daemon import RunningDaemon


class Counted(NamedTuple):
    """The daemon's own counters, in lookups and tokens."""

    lookups: int
    memory: int
    disk: int
    missed: int

    def since(self, before: Counted) -> Counted:
        """Returns what was counted after `before`."""
        return Counted(*(now - then for now, then in zip(self, before, strict=True)))


def counted(daemon: RunningDaemon) -> Counted:
    """Returns the counters as they are now."""
    counts = daemon._observer().counts()
    return Counted(counts.lookups, counts.memory_tokens, counts.disk_tokens, counts.missed_tokens)
