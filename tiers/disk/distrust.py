"""Marks or discards a tier that no process has open, after its workers failed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pagetier.tiers.disk import files
from pagetier.tiers.disk.recovery import Journal, read_state
from pagetier.tiers.disk.tier_folder import converted_errors


def doubt(folder: Path) -> None:
    """Requires the next process that opens the folder to verify it first. Raises TierError."""
    with (
        _owned(folder),
        contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError),
    ):  # an unreadable state file causes a rebuild anyway
        state = read_state(folder)
        if state is not None:
            Journal(folder, state).doubt()


def give_up(folder: Path) -> None:
    """Deletes the folder's content, so that the next process starts with an empty tier. Raises TierError."""
    with _owned(folder):
        for path in list(files.numbered_folders(folder)):
            files.remove_environment(path)


@contextlib.contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Locks the folder, creating it if it is missing, since it is about to be opened."""
    with converted_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = files.own(folder)
        try:
            yield
        finally:
            os.close(descriptor)
