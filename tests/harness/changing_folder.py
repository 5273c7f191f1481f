"""Lists a folder that other processes change at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def paths_in(folder: Path) -> Iterator[Path]:
    """Yields all files and folders in a folder, at any depth. What disappears at the same time may be left out.

    Path.rglob raises FileNotFoundError for a folder that disappears after its parent was listed.
    """
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield Path(parent, name)
