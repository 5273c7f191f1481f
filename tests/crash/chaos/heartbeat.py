"""What engines say of themselves in passing, in memory that outlives them: that they get on, and what they verified."""

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


class Seats:
    """Memory that processes share: a line for each seat, written by whoever has the seat.

    A forked process has it; one that was started by exec has it, too, if it inherited `file`, a descriptor.
    """

    def __init__(self, seats: int, file: int = -1) -> None:
        self.file = os.memfd_create("pagetier-storm-seats") if file < 0 else file
        os.truncate(self.file, seats * _FIELDS * 8)
        self._memory = mmap.mmap(self.file, seats * _FIELDS * 8)
        self._lines = np.frombuffer(self._memory, dtype=np.int64).reshape(seats, _FIELDS)

    def __reduce__(self) -> tuple[type[Seats], tuple[int, int]]:
        return Seats, (len(self._lines), self.file)

    def beat(self, seat: int) -> None:
        """The process of this seat gets on."""
        self._lines[seat, _BEAT] = time.monotonic_ns()
        self._lines[seat, _STEPS] += 1

    def verified(self, seat: int, nbytes: int) -> None:
        """It compared so many bytes with what they should be."""
        self._lines[seat, _BYTES] += nbytes

    def silent(self, seat: int) -> float:
        """Seconds since the last beat."""
        return float(time.monotonic_ns() - int(self._lines[seat, _BEAT])) / 1e9

    @property
    def bytes(self) -> int:
        """Verified by all."""
        return int(self._lines[:, _BYTES].sum())

    @property
    def steps(self) -> int:
        """Done by all."""
        return int(self._lines[:, _STEPS].sum())
