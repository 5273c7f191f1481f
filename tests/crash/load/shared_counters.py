"""Counts the work of each process of a load test in memory that outlives it."""

from __future__ import annotations

import mmap
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
"""The counts by seat and Column."""


class Column(IntEnum):
    """The counts of a process, in pages except for its requests. REFUSED: pages whose store was rejected."""

    ATTACHED = 0
    REQUESTS = 1
    STORED = 2
    PRESENT = 3
    PENDING = 4
    REFUSED = 5
    LOADED = 6


class SharedCounters:
    """Anonymous memory that forked processes share: a row for each seat, written by its process only."""

    def __init__(self, seats: int) -> None:
        self._memory = mmap.mmap(-1, seats * len(Column) * 8)
        self._lines = np.frombuffer(self._memory, dtype=np.int64).reshape(seats, len(Column))

    def add(self, seat: int, column: Column, count: int) -> None:
        """Adds to a count."""
        self._lines[seat, column] += count

    def of(self, seat: int, column: Column) -> int:
        """Returns the current value of a count."""
        return int(self._lines[seat, column])

    def numbers(self) -> Numbers:
        """Returns a copy of all counts."""
        return self._lines.copy()
