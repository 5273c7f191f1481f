"""How much of the segments is in huge pages."""

from __future__ import annotations

from typing import Final

import msgspec

_MOST: Final = 0.9
FEW_REMEDY: Final = (
    "memory that was allocated in small pages stays so: stop and start the daemon, after"
    " `echo 1 > /proc/sys/vm/compact_memory` if memory is fragmented"
)


class HugePageReport(msgspec.Struct, frozen=True, kw_only=True):
    """The share of each segment that is in huge pages, from 0 to 1, as the daemon's page tables say.

    A share is None while nothing of the segment is mapped, and if the kernel cannot say it (before Linux 6.7).
    The fields are keys of `pagetier stats --json`: new ones may be added, none is renamed.
    """

    index: float | None = None
    locks: float | None = None
    arena: float | None = None

    @property
    def few(self) -> bool:
        """Whether much of the arena is known to be in small pages."""
        return self.arena is not None and self.arena < _MOST

    @property
    def text(self) -> str:
        """The shares in words: "100 % of the arena, 0 % of the index"; "" if they are unknown."""
        shares = {"arena": self.arena, "index": self.index, "lock words": self.locks}
        return ", ".join(f"{share:.0%} of the {name}" for name, share in shares.items() if share is not None)
