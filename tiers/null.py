"""The tier of a host without a disk: it holds no pages and accepts none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pagetier.tiers.base import Incoming, Outgoing, ReadOutcome, ReadResult, StoredPages, TierState, Written


class NullTier:
    """A tier that holds no pages, for a daemon without a disk folder."""

    @property
    def room(self) -> int:
        """No frames fit."""
        return 0

    def contents(self) -> Iterator[StoredPages]:
        """Returns no pages."""
        return iter(())

    def write(self, drops: Sequence[bytes], pages: Sequence[Outgoing]) -> Written:
        """Refuses every page."""
        del drops
        return Written((False,) * len(pages), ("there is no tier",) * len(pages))

    def read(self, page: Incoming) -> ReadResult:
        """Always ABSENT; the frames stay as they are."""
        del page
        return ReadResult(ReadOutcome.ABSENT)

    def sync(self) -> None:
        """Nothing to do."""

    def distrust(self) -> None:
        """Nothing to prove."""

    def state(self) -> TierState:
        """All zero, and clean."""
        return TierState(
            file_bytes=0,
            cap_bytes=0,
            used_frames=0,
            room=0,
            disk_free=0,
            disk_total=0,
            last_sync=0,
            clean=True,
            opened="no tier",
        )

    def close(self) -> None:
        """Nothing to do."""
