"""A file that a test and what it tests both have mapped: what one writes the other reads."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Self


class MappedFile:
    """So many bytes, zeroes where the file is new. `memory` is valid until close()."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self.path = path
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(file, nbytes)
            self.memory = mmap.mmap(file, nbytes)
        finally:
            os.close(file)

    def close(self) -> None:
        """The file is the caller's to remove."""
        self.memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()
