"""Changes of a tier's files while it is open: they are truncated, replaced or removed."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

_PAGE: Final = 4096
_DATA: Final = "data.mdb"
_FIRST: Final = "0/data.mdb"
_LOCK: Final = "0/lock.mdb"
_Make = Callable[[Path], object]


class Change(msgspec.Struct, frozen=True):
    """A change of a tier's folder with two parts.

    Attributes:
        name: The name of the case.
        make: The function that changes the folder.
        log_words: Words that the log must contain soon after the change.
        few: Whether the change belongs to the few that are always tested.
    """

    name: str
    make: _Make
    log_words: str = "no disk tier"
    few: bool = False

    def __str__(self) -> str:
        return self.name


def _cut(share: float) -> _Make:
    """Truncates the first data file to this share of its pages."""
    return lambda folder: os.truncate(folder / _FIRST, int((folder / _FIRST).stat().st_size // _PAGE * share) * _PAGE)


def _cut_both(folder: Path) -> None:
    for part in ("0", "1"):
        os.truncate(folder / part / _DATA, 2 * _PAGE)


def _replace(name: str, content: Callable[[bytes], bytes]) -> _Make:
    """Replaces a file by rename, as programs do that write files atomically; the new content follows from the old."""

    def make(folder: Path) -> None:
        path = folder / name
        beside = path.with_name(path.name + ".other")
        beside.write_bytes(content(path.read_bytes()))
        beside.rename(path)

    return make


def _by_the_other(folder: Path) -> None:
    _replace(_FIRST, lambda _: (folder / "1" / _DATA).read_bytes())(folder)


def _swap(folder: Path) -> None:
    one, other, aside = folder / _FIRST, folder / "1" / _DATA, folder / "0" / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _unlink(name: str) -> _Make:
    return lambda folder: (folder / name).unlink()


CHANGES: Final = (
    Change("cut to nothing", _cut(0)),
    Change("cut to a half", _cut(0.5)),
    Change("cut by a tenth", _cut(0.9), few=True),
    Change("both cut to their meta pages", _cut_both),
    Change("replaced by a copy", _replace(_FIRST, bytes)),  # like a restored backup
    Change("replaced by garbage", _replace(_FIRST, lambda data: random.Random(8).randbytes(len(data)))),
    Change("replaced by zeros", _replace(_FIRST, lambda data: bytes(len(data)))),
    Change("replaced by the other part", _by_the_other, few=True),
    Change("swapped with the other part", _swap),
    Change("replaced by nothing", _replace(_FIRST, lambda _: b"")),
    Change("unlinked", _unlink(_FIRST)),
    Change("a part's folder removed", lambda folder: shutil.rmtree(folder / "1")),
    Change("the folder removed", shutil.rmtree),
    Change("the folder moved away", lambda folder: folder.rename(folder.with_name("away"))),
    Change("the lock file cut", lambda folder: os.truncate(folder / _LOCK, 0)),
    Change("the lock file replaced", _replace(_LOCK, lambda _: b""), ""),
    Change("the lock file unlinked", _unlink(_LOCK)),
    Change("the state unlinked", _unlink("state"), ""),
    Change("the state replaced", _replace("state", lambda _: b"{}"), ""),
    Change("the owner unlinked", _unlink("owner")),
)
