"""What the daemon reports of quotas: the shares of each tenant, and the frames that it has."""

from __future__ import annotations

from typing import Final

import msgspec

OTHERS: Final = "others"


class TenantUse(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant: its quota, and the frames that it has.

    Attributes:
        pattern: The pattern of its namespaces; "" for those that no pattern matches.
        arena_minimum: A share of the arena, as is arena_maximum.
        disk_minimum: A share of each device, as is disk_maximum.
    """

    pattern: str
    arena_minimum: float
    arena_maximum: float
    disk_minimum: float
    disk_maximum: float
    arena_frames: int
    disk_frames: int

    @property
    def name(self) -> str:
        """The pattern, or "others"."""
        return self.pattern or OTHERS
