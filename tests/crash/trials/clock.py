"""A realtime clock that jumps when a test says so, for processes that are started with its variables."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from disk_faults.preload import library


class Clock:
    """Its shift lies in a file, which all processes that have it map."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)

    @property
    def variables(self) -> Mapping[str, str]:
        """Of the environment of a process that is to have it."""
        return {"LD_PRELOAD": str(library(Path(__file__).with_name("clock.c"))), "PT_CLOCK": str(self._file)}

    @property
    def before(self) -> list[str]:
        """A command that runs another one with it."""
        return ["env", *(f"{name}={value}" for name, value in self.variables.items())]

    def jump(self, seconds: float) -> None:
        """From now on it shows the host's clock and so many seconds more."""
        shift = struct.pack("<q", int(seconds * 1e9))
        if not self._file.exists():
            self._file.write_bytes(shift)
        with self._file.open("r+b") as file:
            file.write(shift)
