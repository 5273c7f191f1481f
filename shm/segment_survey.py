"""What daemons have in /dev/shm, and what they left there: for administrators."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pagetier.shm.index_header import Head, head_of
from pagetier.shm.segment_files import KINDS, is_locked

_INDEX = ".index"


class Found(msgspec.Struct, frozen=True):
    """Segments under one name. uid: of whom they belong to; nbytes: memory that they take, as far as it can be seen."""

    name: str
    uid: int
    nbytes: int
    head: Head
    lives: bool


def survey(folder: Path = Path("/dev/shm")) -> list[Found]:
    """The segments that this process may open, by name."""
    return sorted(_look(folder), key=lambda found: found.name)


def _look(folder: Path) -> Iterator[Found]:
    for path in folder.glob(f"*{_INDEX}"):
        try:
            index = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            found = _look_at(folder, path.name.removesuffix(_INDEX), index)
        finally:
            os.close(index)
        if found is not None:
            yield found


def _look_at(folder: Path, name: str, index: int) -> Found | None:
    head = head_of(index)
    files = [folder / f"{name}.{kind}" for kind in KINDS]
    if not head.ours and not (head.unfinished and all(file.exists() for file in files)):
        return None
    nbytes = sum(map(_memory, files))
    return Found(name, os.fstat(index).st_uid, nbytes, head, is_locked(index))


def _memory(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
