"""A file that the test and the tested code both map, so that each one sees what the other writes."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Self


class MappedFile:
    """A mapping of `nbytes` bytes, zero if the file is new. `memory` is valid until close()."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self.path = path
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(file, nbytes)
            self.memory = mmap.mmap(file, nbytes)
        finally:
            os.close(file)

    def close(self) -> None:
        """Unmaps the file, which the caller removes."""
        self.memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()
