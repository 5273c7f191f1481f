"""Records the progress of engines, and the bytes that they verified, in memory that outlives their processes."""

from __future__ import annotations

import mmap
import os
import time
from typing import Final

import numpy as np

_ROW: Final = np.dtype([("beat", np.int64), ("steps", np.int64), ("bytes", np.int64)])
_HEAD: Final = 8


class Heartbeats:
    """Shared memory with a row for each seat, written by the process that has the seat, and the newest prompt's number.

    A forked process inherits it; a process that was started by exec maps it through `file`, an inherited descriptor.
    """

    def __init__(self, seats: int, file: int = -1) -> None:
        self.file = os.memfd_create("pagetier-storm-seats") if file < 0 else file
        os.truncate(self.file, _HEAD + seats * _ROW.itemsize)
        memory = mmap.mmap(self.file, _HEAD + seats * _ROW.itemsize)
        self._newest = np.frombuffer(memory, np.int64, 1)
        self._rows = np.frombuffer(memory, _ROW, seats, _HEAD)

    def __reduce__(self) -> tuple[type[Heartbeats], tuple[int, int]]:
        return Heartbeats, (len(self._rows), self.file)

    def beat(self, seat: int, steps: int = 0) -> None:
        """Records that the process in this seat is alive, and how many requests it has served since the last time."""
        self._rows["beat"][seat] = time.monotonic_ns()
        self._rows["steps"][seat] += steps

    def verified(self, seat: int, nbytes: int) -> None:
        """Adds the number of bytes that were compared successfully."""
        self._rows["bytes"][seat] += nbytes

    def silent(self, seat: int) -> float:
        """Returns the seconds since the last heartbeat."""
        return float(time.monotonic_ns() - int(self._rows["beat"][seat])) / 1e9

    @property
    def newest(self) -> int:
        """The number of the newest prompt, which one process decides."""
        return int(self._newest[0])

    @newest.setter
    def newest(self, number: int) -> None:
        self._newest[0] = number

    @property
    def steps(self) -> list[int]:
        """The number of requests that were served in each seat."""
        steps: list[int] = self._rows["steps"].tolist()
        return steps

    @property
    def bytes(self) -> int:
        """The number of bytes that all processes verified."""
        return int(self._rows["bytes"].sum())
