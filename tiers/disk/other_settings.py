"""Finds pages in a folder of the disk tier that a worker with the current settings would not read, but discard."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pagetier.shm.units import counted, spell_size
from pagetier.tiers.capacity import StoreName, slot_bytes_of
from pagetier.tiers.disk.file_format import COMPRESSED_FORMAT
from pagetier.tiers.disk.file_system import DATA, numbered_folders
from pagetier.tiers.disk.recovery import State, read_state, shortened

if TYPE_CHECKING:
    import lmdb


def pages_of_other_settings(folder: Path, store: StoreName, frame_bytes: int) -> str:
    """Returns that a folder has pages that only other settings read; "" if not, or if this user cannot see them."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        state = read_state(folder)
        differ = [] if state is None else list(_differences(state, store, frame_bytes))
        if differ and (pages := _pages_in(folder)):
            have, wanted = (", ".join(each) for each in zip(*differ, strict=True))
            return f"{folder} has {pages} with {have}, not {wanted}"
    return ""


def _differences(state: State, store: StoreName, frame_bytes: int) -> Iterator[tuple[str, str]]:
    """Yields what a folder was made with, where it is not what the configuration asks for, and the setting of that."""
    unit, unit_bytes = "arena.frame_size =", frame_bytes
    if state.format == COMPRESSED_FORMAT:
        unit, unit_bytes = "slots of", slot_bytes_of(frame_bytes)
    if state.store != store:
        yield f"disk.store = {state.store}", f"disk.store = {store}"
    if state.frame_bytes != unit_bytes:  # another compression is no reason: pages in memory survive it
        yield f"{unit} {spell_size(state.frame_bytes)}", f"arena.frame_size = {spell_size(frame_bytes)}"


def _pages_in(folder: Path) -> str:
    """Returns the pages in the environments of a folder in words; "" if there are none. Raises OSError."""
    counts = [_count(path / DATA) for path in numbered_folders(folder) if _is_ours(path / DATA)]
    if None in counts:
        return "pages that cannot be counted"
    pages = sum(count or 0 for count in counts)
    return counted(pages, "page") if pages else ""


def _is_ours(data: Path) -> bool:
    """Returns whether a file may be opened. What another user made is refused when the tier is opened."""
    with suppress(FileNotFoundError):
        found = data.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid())
    return False


def _count(data: Path) -> int | None:
    """Returns how many pages there are in an environment; None if it cannot be read."""
    import lmdb  # only where a setting was changed

    try:
        if shortened(data.parent):
            return 0
        with _read_only(data) as env, env.begin() as txn:
            return int(txn.stat(env.open_db(b"pages", txn, create=False))["entries"])
    except (PermissionError, lmdb.NotFoundError):
        return 0
    except (OSError, lmdb.Error):
        return None


def _read_only(data: Path) -> lmdb.Environment:
    import lmdb

    return lmdb.open(os.fspath(data), subdir=False, readonly=True, lock=False, readahead=False, max_dbs=4)
