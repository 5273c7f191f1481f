"""The phase of a daemon's life, and how far it is with it."""

from __future__ import annotations

from enum import Enum

import msgspec


class Phase(Enum):
    """The phase of a daemon's life. Engines can attach while it serves or stops.

    No daemon publishes UNKNOWN: readers see it instead of a status that is damaged.
    """

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    UNKNOWN = "unknown"


class PhaseProgress(msgspec.Struct, frozen=True):
    """How far the daemon is with its phase: bytes done of all bytes. Both are 0 if nothing is to be done."""

    phase: Phase = Phase.STARTING
    done: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        """How far the daemon is with its phase, from 0 to 1. A start begins with 0, a phase without bytes is at 1."""
        if self.total:
            return round(self.done / self.total, 3)
        return float(self.phase is not Phase.STARTING)
