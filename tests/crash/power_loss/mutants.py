"""Deliberate bugs of a tier, which the tests must find."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from pagetier.tiers.disk import environment, file_system, reader, recovery, store_folder
from pagetier.tiers.frame_files.direct_files import DirectFiles
from pagetier.tiers.frame_files.files_environment import FilesEnvironment
from pagetier.tiers.lmdb import proof


def _syncs_nothing() -> None:
    environment.Environment.sync = lambda self: None  # type: ignore[method-assign]


def _writes_state_without_sync() -> None:
    def write(path: Path, content: bytes) -> None:
        beside = path.with_name(path.name + ".tmp")
        beside.write_bytes(content.ljust(512))
        beside.rename(path)

    file_system.write_atomically = write


def _believes() -> None:
    proof.fault = lambda data: ""
    recovery._verdict = lambda proof, folder: ""


def _gives_up_late() -> None:
    store_folder._give_up = lambda folders, options, owner: None


def _compares_nothing() -> None:
    reader._verify = lambda page, header: ""


def _syncs_no_frames() -> None:
    DirectFiles.sync = lambda self: None  # type: ignore[method-assign]


def _writes_records_first() -> None:
    written, committed = FilesEnvironment.write_frames, FilesEnvironment._committed
    later: list[Callable[[], None]] = []

    def write(self: FilesEnvironment, *what: Any) -> None:
        later.append(partial(written, self, *what))

    def commit(self: FilesEnvironment) -> None:
        committed(self)
        while later:
            later.pop()()

    FilesEnvironment.write_frames = write  # type: ignore[assignment,method-assign]
    FilesEnvironment._committed = commit  # type: ignore[method-assign]


MISTAKES: Final[dict[str, Callable[[], None]]] = {
    "": lambda: None,
    "reports a sync without syncing": _syncs_nothing,
    "marks its files dirty in memory only": _writes_state_without_sync,
    "trusts files without verification": _believes,
    "discards unsound parts after it marked them as clean": _gives_up_late,
    "verifies no checksum": _compares_nothing,
    "syncs no bytes of frames": _syncs_no_frames,
    "writes records before bytes": _writes_records_first,
}


def make(mistake: str) -> None:
    """Applies a bug to this process."""
    MISTAKES[mistake]()
