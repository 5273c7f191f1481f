"""A realtime clock that jumps on a test's command, for processes that are started with its variables."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from compiled_library import library


class Clock:
    """The clock. Its shift is in a file that all processes with this clock map."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)

    @property
    def variables(self) -> Mapping[str, str]:
        """Returns the environment variables of a process with this clock."""
        return {"LD_PRELOAD": str(library(Path(__file__).with_name("clock.c"))), "PT_CLOCK": str(self._file)}

    @property
    def before(self) -> list[str]:
        """Returns a command prefix that runs another command with this clock."""
        return ["env", *(f"{name}={value}" for name, value in self.variables.items())]

    def jump(self, seconds: float) -> None:
        """Shifts the clock: from now on it shows the host's time plus `seconds`."""
        shift = struct.pack("<q", int(seconds * 1e9))
        if not self._file.exists():
            self._file.write_bytes(shift)
        with self._file.open("r+b") as file:
            file.write(shift)
