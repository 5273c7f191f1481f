"""Says how an administrator lets a user keep a disk tier in a folder, or the pages that are there."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

from pagetier.shm.socket_path import closed_folder

OTHER_SETTINGS_REMEDY: Final = (
    "set the former value to keep these pages, or start once with --fresh to discard them and those in memory"
    " (a service: stop it, empty that folder, start it)"
)


def folder_remedy(folder: Path) -> str:
    """Returns what lets this process's user write to a folder, which may not exist; "" for root, who may already."""
    user = os.geteuid()
    if not user:
        return ""
    if closed := closed_folder(folder):
        return f"user {user} may not enter {closed}: set another disk.path"
    name = shlex.quote(os.fspath(folder))
    made = f"chown -R {user} {name}" if folder.exists() else f"install -d -m 700 -o {user} {name}"
    return f"user {user} may not write there: as root, run {made}, or set another disk.path"
