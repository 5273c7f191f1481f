"""What a worker does to a folder before it opens it, when the last ones have died of what lies there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from . import files
from .opening import telling
from .soundness import Journal, read_state


def doubt(folder: Path) -> None:
    """Who opens it next proves it first. Raises TierError."""
    with _owned(folder), contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):  # that one is rebuilt anyway
        state = read_state(folder)
        if state is not None:
            Journal(folder, state).doubt()


def give_up(folder: Path) -> None:
    """Who opens it next begins anew. Raises TierError."""
    with _owned(folder):
        for path in list(files.numbered_folders(folder)):
            files.remove_environment(path)


@contextlib.contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Made if it is missing, as it is about to be opened."""
    with telling(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = files.own(folder)
        try:
            yield
        finally:
            os.close(descriptor)
