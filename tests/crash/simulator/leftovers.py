"""Removes what killed test runs left behind; the names contain the pid of their owner."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "pagetier-storm-"
_OWNED: Final = re.compile(rf"{_PREFIX}(\d+)-.+")


def prefix_of_this_process() -> str:
    """Returns the prefix of all names of folders and segments of this run."""
    return f"{_PREFIX}{os.getpid()}-"


def sweep(*places: Path) -> list[str]:
    """Removes the files and folders of runs whose process is dead, unless they belong to another user.

    Without arguments it sweeps shared memory and the folder for temporary files.

    Returns:
        The names of the removed files and folders.
    """
    paths = [path for place in places or (Path("/dev/shm"), Path(tempfile.gettempdir())) for path in place.iterdir()]
    dead = [path for path in paths if (owned := _OWNED.fullmatch(path.name)) and not Path(f"/proc/{owned[1]}").exists()]
    for path in dead:
        shutil.rmtree(path, ignore_errors=True)  # of folders
        with suppress(OSError):
            path.unlink()
    return [path.name for path in dead]
