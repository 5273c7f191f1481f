"""Removes what killed test runs left behind; the names contain the pid of their owner."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PREFIX: Final = "pagetier-storm-"
_OWNED: Final = re.compile(rf"{_PREFIX}(\d+)-.+")
_SHM: Final = Path("/dev/shm")


def prefix_of_this_process() -> str:
    """Returns the prefix of all names of folders and segments of this run."""
    return f"{_PREFIX}{os.getpid()}-"


def sweep(*places: Path) -> list[str]:
    """Removes the files and folders of runs whose process is dead.

    Without arguments it sweeps shared memory and the folder for temporary files.

    Returns:
        The names of the removed files and folders.
    """
    dead = [path for place in places or (_SHM, Path(tempfile.gettempdir())) for path in _of_the_dead(place)]
    for path in dead:
        _remove(path)
    return [path.name for path in dead]


def _of_the_dead(place: Path) -> Iterator[Path]:
    for path in place.glob(f"{_PREFIX}*"):
        owned = _OWNED.fullmatch(path.name)
        if owned and not Path(f"/proc/{owned[1]}").exists():
            yield path


def _remove(path: Path) -> None:
    """Removes a path; ignores files of other users, and files that another run removes at the same time."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        path.unlink()
    except OSError:
        return
