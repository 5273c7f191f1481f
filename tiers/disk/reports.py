"""What an environment reports of a read and of a listing, and its kinds of transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import lmdb
import msgspec

from pagetier.tiers.base import ReadResult
from pagetier.tiers.disk.file_format import Header

Transaction: TypeAlias = "lmdb.Transaction[memoryview]"
Listing: TypeAlias = "lmdb.Transaction[bytes]"


class ReadReport(msgspec.Struct, frozen=True):
    """The result of a read, and the header of a page that was found damaged."""

    result: ReadResult
    header: Header | None = None


class Tally(Protocol):
    """Compares what is counted with what is listed."""

    @property
    def wrong(self) -> str:
        """The difference, or "" if there is none or it is unknown."""

    def count(self, txn: Listing, database: lmdb._Database) -> None:
        """Records the number of entries, in each transaction whose headers are added."""

    def add(self, headers: Sequence[bytes]) -> None:
        """Adds some headers."""
