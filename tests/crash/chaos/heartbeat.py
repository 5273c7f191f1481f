"""Records the progress of engines, and the bytes that they verified, in memory that outlives their processes."""

from __future__ import annotations

import mmap
import os
import time
from typing import Final

import numpy as np

_BEAT: Final = 0
_BYTES: Final = 1
_STEPS: Final = 2
_FIELDS: Final = 3


class Heartbeats:
    """Shared memory with a row for each seat, written by the process that has the seat.

    A forked process inherits it; a process that was started by exec maps it through `file`, an inherited descriptor.
    """

    def __init__(self, seats: int, file: int = -1) -> None:
        self.file = os.memfd_create("pagetier-storm-seats") if file < 0 else file
        os.truncate(self.file, seats * _FIELDS * 8)
        self._memory = mmap.mmap(self.file, seats * _FIELDS * 8)
        self._lines = np.frombuffer(self._memory, dtype=np.int64).reshape(seats, _FIELDS)

    def __reduce__(self) -> tuple[type[Heartbeats], tuple[int, int]]:
        return Heartbeats, (len(self._lines), self.file)

    def beat(self, seat: int) -> None:
        """Records a step of the process in this seat."""
        self._lines[seat, _BEAT] = time.monotonic_ns()
        self._lines[seat, _STEPS] += 1

    def verified(self, seat: int, nbytes: int) -> None:
        """Adds the number of bytes that were compared successfully."""
        self._lines[seat, _BYTES] += nbytes

    def silent(self, seat: int) -> float:
        """Returns the seconds since the last step."""
        return float(time.monotonic_ns() - int(self._lines[seat, _BEAT])) / 1e9

    @property
    def bytes(self) -> int:
        """The number of bytes that all processes verified."""
        return int(self._lines[:, _BYTES].sum())

    @property
    def steps(self) -> int:
        """The number of steps of all processes."""
        return int(self._lines[:, _STEPS].sum())
