"""Mistakes that a tier may be given, so that it is seen that they are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from pagetier.tiers.lmdb import environment, files, reader, recovery, tier_folder


def _syncs_nothing() -> None:
    environment.Environment.sync = lambda self: None  # type: ignore[method-assign]


def _writes_state_without_sync() -> None:
    def write(path: Path, content: bytes) -> None:
        beside = path.with_name(path.name + ".tmp")
        beside.write_bytes(content.ljust(512))
        beside.rename(path)

    files.write_atomically = write


def _believes() -> None:
    recovery._PROOF = ""  # type: ignore[misc]


def _gives_up_late() -> None:
    tier_folder._remove = lambda folders: None


def _compares_nothing() -> None:
    reader._verify = lambda page, header: ""


MISTAKES: Final[dict[str, Callable[[], None]]] = {
    "": lambda: None,
    "says synced, and has not": _syncs_nothing,
    "marks its files dirty in memory alone": _writes_state_without_sync,
    "believes without a proof": _believes,
    "gives up what is unsound after it said that it can be believed": _gives_up_late,
    "compares no checksum": _compares_nothing,
}


def make(mistake: str) -> None:
    """In this process, from now on."""
    MISTAKES[mistake]()
