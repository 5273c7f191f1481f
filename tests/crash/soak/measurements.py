"""Keeps the measurements in files, because the memory of a process that forks others must not grow."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from soak.latency_histogram import BUCKETS, Counts
from soak.sampling import Reading

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Reading).decode
_READINGS: Final = "readings"
_WINDOWS: Final = "windows"


class Measurements:
    """The readings, and for each window the histogram of each kind of call. `kinds` is the number of kinds."""

    def __init__(self, folder: Path, kinds: int) -> None:
        self._readings = folder / _READINGS
        self._windows = folder / _WINDOWS
        self._readings.touch()
        self._windows.touch()
        self._kinds = kinds
        self._before: Counts = np.zeros((kinds, BUCKETS), dtype=np.int64)

    def put(self, reading: Reading) -> None:
        """Adds a reading."""
        with self._readings.open("ab") as file:
            file.write(_encode(reading) + b"\n")

    def begin(self, counts: Counts) -> None:
        """Starts the first window. `counts` are the counts so far, as Times returns them."""
        self._before = counts

    def end_window(self, counts: Counts) -> None:
        """Ends a window and starts the next one."""
        with self._windows.open("ab") as file:
            file.write((counts - self._before).tobytes())
        self._before = counts

    def readings(self) -> list[Reading]:
        """Returns all readings, in order."""
        return [_decode(line) for line in self._readings.read_bytes().splitlines()]

    def windows(self) -> Counts:
        """Returns all windows in order: counts by window, kind and duration."""
        return np.fromfile(self._windows, dtype=np.int64).reshape(-1, self._kinds, BUCKETS)
