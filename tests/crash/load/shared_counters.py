"""What each process of a load did, in memory that outlives it."""

from __future__ import annotations

import mmap
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
"""By seat and Column."""


class Column(IntEnum):
    """What is counted of a process: pages, but for its requests. REFUSED: of those that it wanted to store."""

    ATTACHED = 0
    REQUESTS = 1
    STORED = 2
    PRESENT = 3
    PENDING = 4
    REFUSED = 5
    LOADED = 6


class Ledger:
    """Anonymous memory that forked processes share: a line for each seat, written by its process alone."""

    def __init__(self, seats: int) -> None:
        self._memory = mmap.mmap(-1, seats * len(Column) * 8)
        self._lines = np.frombuffer(self._memory, dtype=np.int64).reshape(seats, len(Column))

    def add(self, seat: int, column: Column, count: int) -> None:
        """So many more."""
        self._lines[seat, column] += count

    def of(self, seat: int, column: Column) -> int:
        """As it is now."""
        return int(self._lines[seat, column])

    def numbers(self) -> Numbers:
        """As they are now; the caller's own."""
        return self._lines.copy()
