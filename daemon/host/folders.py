"""Creates folders that other users have to enter."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_MODE: Final = 0o755
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
