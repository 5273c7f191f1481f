"""Keeps what the daemon knows of lookups in the tier's folder, while there are no segments.

The file is there only between a stop that releases the memory and the next start. Nothing depends on it, so a failure
is one line in the log.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from pagetier.shm.log_format import event
from pagetier.shm.units import format_size
from pagetier.tiers.disk import file_system

log = logging.getLogger("pagetier.tier")

NAME: Final = "lookups"
BESIDE: Final = f"{NAME}.tmp"
_SECTOR: Final = 512
_MOST: Final = 4 << 20  # a longer file is not one that save() wrote, and its beginning is rejected as damaged


def save(folder: Path, data: bytes, cap: int) -> None:
    """Writes the file.

    Args:
        folder: The tier's folder.
        data: The content.
        cap: The limit of all files together.
    """
    try:
        if len(data) > (free := max(0, cap - _taken(folder))):
            _report(folder, f"it takes {format_size(len(data))}, and {format_size(free)} of disk.size are left")
            return
        _write(folder / BESIDE, data)
        (folder / BESIDE).rename(folder / NAME)
        file_system.sync_folder(folder)
    except OSError as error:
        _report(folder, error.strerror or str(error))


def take(folder: Path) -> bytes | None:
    """Returns what save() wrote, and removes it; None if there is nothing that can be read."""
    try:
        (folder / BESIDE).unlink(missing_ok=True)
        descriptor = os.open(folder / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(_MOST)
        (folder / NAME).unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s cannot be used: %s", folder / NAME, error.strerror or error, extra=event("lookups_dropped"))
        return None
    return data


def _taken(folder: Path) -> int:
    """Returns the bytes that the folder takes: lengths, or blocks where more of them are allocated."""
    stats = [path.lstat() for path in (folder, *folder.rglob("*"))]
    return sum(max(stat.st_size, stat.st_blocks * _SECTOR) for stat in stats)


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _report(folder: Path, why: str) -> None:
    line = "what is known of lookups was not saved in %s, so pagetier advise starts again: %s"
    log.warning(line, folder, why, extra=event("lookups_not_saved"))
