"""What became of the hints of engines and operators."""

from __future__ import annotations

import msgspec

from pagetier.shm.units import counted, format_size


class HintReport(msgspec.Struct, frozen=True, kw_only=True):
    """Hints of engines and operators, since the daemon started. Pages count once for each hint that names them.

    The fields are keys of `pagetier stats --json`: new ones may be added, none is renamed.

    Attributes:
        pages: Pages that hints named.
        applied: Pages that had the hint afterwards.
        absent: Pages that were in no tier or, to be kept, not in memory or beyond evict.keep_share.
        without_effect: Pages that hints named while evict.policy was lru.
        wrong: Hints that were ignored as a whole, for example with a negative time to live.
        kept_bytes: Bytes of the frames that are kept now.
        keeps_ended_early: Requests to keep pages that ended before their time, in favour of others.
    """

    pages: int = 0
    applied: int = 0
    absent: int = 0
    without_effect: int = 0
    wrong: int = 0
    kept_bytes: int = 0
    keeps_ended_early: int = 0

    @property
    def text(self) -> str:
        """What hints named and what is kept by request; "" without hints."""
        if not self.pages and not self.wrong:
            return ""
        counts = (
            (self.absent, "absent or beyond evict.keep_share"),
            (self.without_effect, "without effect: evict.policy is lru"),
        )
        ignored = [f"{number:,} {what}" for number, what in counts if number]
        wrong = f"; {counted(self.wrong, 'invalid hint')}" if self.wrong else ""
        named = ", ".join([f"Hints: {counted(self.pages, 'page')}", *ignored])
        return f"{named}{wrong}; {format_size(self.kept_bytes)} kept in memory by request"
