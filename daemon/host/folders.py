"""Creates folders that other users have to enter, and says where there can be none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pagetier.daemon.host.mounts import Mount, mount_of

_MODE: Final = 0o755
_NO_FILES: Final = ("proc", "sysfs", "cgroup", "cgroup2", "devpts", "debugfs", "tracefs", "bpf", "securityfs")
_OPENED: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_folders(folder: Path) -> None:
    """Creates a folder and its parents for all users to enter, whatever the umask is. Existing ones stay as they are.

    Raises OSError, FileExistsError if there is a file.
    """
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    with suppress(OSError):  # another process has created it as another user
        descriptor = os.open(folder, _OPENED)
        try:
            os.fchmod(descriptor, _MODE)
        finally:
            os.close(descriptor)


def existing_folder(path: Path) -> Path:
    """Returns the path, or the nearest above it that exists, as far as this user can see."""
    return next(place for place in (path, *path.parents) if os.path.exists(place))  # noqa: PTH110  never raises


def why_no_folder(path: Path, mounts: Sequence[Mount]) -> str:
    """Returns why there can be no folder with files at a path, whichever user creates it; or ""."""
    there = existing_folder(path).resolve()
    if not there.is_dir():
        return f"{there} is not a folder"
    mount = mount_of(there, mounts)
    if mount is not None and mount.kind in _NO_FILES:
        return f"{path} lies in {mount.point}, of type {mount.kind}, where no files can be created"
    return ""
