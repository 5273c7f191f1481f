"""Checks whether LMDB lists as many records as it counts."""

from __future__ import annotations

import lmdb

from pagetier.tiers.disk.environment import Listing, Record


class RecordCount:
    """Counts the records that are listed, as one or several transactions see them."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()
        self._listed = 0

    def count(self, txn: Listing, database: lmdb._Database) -> None:
        """Records LMDB's own count, in each transaction whose records are added."""
        self._seen.add((txn.id(), txn.stat(database)["entries"]))

    def add(self, records: list[Record]) -> None:
        """Adds records."""
        self._listed += len(records)

    @property
    def wrong(self) -> str:
        """The difference, or "" if there is none. It is unknown, and "", after a concurrent change."""
        if len(self._seen) != 1:
            return ""
        ((_, there),) = self._seen
        return f"it counts {there} records and lists {self._listed}" if there != self._listed else ""
