"""How much room a disk tier finds on its file system."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from pagetier.daemon.host.folders import existing_folder
from pagetier.daemon.host.host import Host

_DATA_FILES: Final = ("data.mdb", "frames.*")
_BLOCK_BYTES: Final = 512


class DiskSpace(NamedTuple):
    """Bytes of a file system that are free, and those that the files of the tier take."""

    free: int
    in_use: int

    @property
    def room(self) -> int:
        """The bytes that the tier may take before the file system is full."""
        return self.free + self.in_use


def space_seen(folder: Path, host: Host) -> DiskSpace:
    """Returns the space for a tier in this folder, as far as this user can see its files. Raises OSError."""
    stat = host.statvfs(existing_folder(folder))
    return DiskSpace(stat.f_bavail * stat.f_frsize, _taken(folder))


def _taken(folder: Path) -> int:
    try:
        return sum(file.stat().st_blocks * _BLOCK_BYTES for name in _DATA_FILES for file in folder.rglob(name))
    except OSError:
        return 0
