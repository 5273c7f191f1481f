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
_LOCK: Final = "lock.mdb"


class Change(msgspec.Struct, frozen=True):
    """A change of a tier's folder with two parts.

    Attributes:
        name: The name of the case.
        make: The function that changes the folder.
        log_words: Words that the log must contain soon after the change.
        few: Whether the change belongs to the few that are always tested.
    """

    name: str
    make: Callable[[Path], None]
    log_words: str = "no disk tier"
    few: bool = False

    def __str__(self) -> str:
        return self.name


def _cut(folder: Path, share: float) -> None:
    """Truncates the data files to this share of their pages, never both to the same length."""
    data = folder / "0" / _DATA
    os.truncate(data, int(data.stat().st_size // _PAGE * share) * _PAGE)


def _cut_both(folder: Path) -> None:
    for part in ("0", "1"):
        os.truncate(folder / part / _DATA, 2 * _PAGE)


def _replace(path: Path, content: bytes) -> None:
    """Replaces a file by rename, as programs do that write files atomically."""
    beside = path.with_name(path.name + ".other")
    beside.write_bytes(content)
    beside.rename(path)


def _copy(folder: Path) -> None:
    """Replaces the data file by a copy, like a restored backup, without the pages that are written during the copy."""
    data = folder / "0" / _DATA
    _replace(data, data.read_bytes())


def _garbage(folder: Path) -> None:
    data = folder / "0" / _DATA
    _replace(data, random.Random(8).randbytes(data.stat().st_size))


def _zeros(folder: Path) -> None:
    data = folder / "0" / _DATA
    _replace(data, bytes(data.stat().st_size))


def _by_the_other(folder: Path) -> None:
    _replace(folder / "0" / _DATA, (folder / "1" / _DATA).read_bytes())


def _swap(folder: Path) -> None:
    one, other, aside = folder / "0" / _DATA, folder / "1" / _DATA, folder / "0" / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _unlink(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: _replace(folder / name, content)


def _move_away(folder: Path) -> None:
    folder.rename(folder.with_name("away"))


CHANGES: Final = (
    Change("cut to nothing", lambda folder: _cut(folder, 0)),
    Change("cut to a half", lambda folder: _cut(folder, 0.5)),
    Change("cut by a tenth", lambda folder: _cut(folder, 0.9), few=True),
    Change("both cut to their meta pages", _cut_both),
    Change("replaced by a copy", _copy),
    Change("replaced by garbage", _garbage),
    Change("replaced by zeros", _zeros),
    Change("replaced by the other part", _by_the_other, few=True),
    Change("swapped with the other part", _swap),
    Change("replaced by nothing", _write(f"0/{_DATA}", b"")),
    Change("unlinked", _unlink(f"0/{_DATA}")),
    Change("a part's folder removed", lambda folder: shutil.rmtree(folder / "1")),
    Change("the folder removed", shutil.rmtree),
    Change("the folder moved away", _move_away),
    Change("the lock file cut", lambda folder: os.truncate(folder / "0" / _LOCK, 0)),
    Change("the lock file replaced", _write(f"0/{_LOCK}", b""), ""),
    Change("the lock file unlinked", _unlink(f"0/{_LOCK}")),
    Change("the state unlinked", _unlink("state"), ""),
    Change("the state replaced", _write("state", b"{}"), ""),
    Change("the owner unlinked", _unlink("owner")),
)
