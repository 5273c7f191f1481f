"""Files of a host, as its kernel writes them, in a folder of a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def host_files(root: Path, files: Mapping[str, object]) -> Path:
    """Writes one line into each of these files below a folder, and returns the folder."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root
