"""The numbers by which the kernel reports users and groups that this process's user namespace does not map.

The kernel gives one number, usually 65534, for all of them, so it identifies none of them.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

import msgspec

_ALL_IDS: Final = 2**32 - 1  # the initial user namespace maps this many
STANDS_FOR_UNMAPPED: Final = "stands for everyone that the daemon's user namespace does not map"


class UnmappedIds(msgspec.Struct, frozen=True):
    """The numbers that stand for every unmapped user and group; None if all are mapped, as outside of containers."""

    user: int | None
    group: int | None


def read_unmapped_ids(root: Path) -> UnmappedIds:
    """Returns the numbers for this process's user namespace.

    Args:
        root: A folder with proc.
    """
    return UnmappedIds(_unmapped(root, "uid"), _unmapped(root, "gid"))


@functools.cache
def unmapped_ids() -> UnmappedIds:
    """Returns the numbers for this process, which stays in its user namespace."""
    return read_unmapped_ids(Path("/"))


def _unmapped(root: Path, kind: str) -> int | None:
    return None if _mapped(root / f"proc/self/{kind}_map") >= _ALL_IDS else _overflow(root, kind)


def _mapped(file: Path) -> int:
    """Returns how many IDs a map has. An unreadable one proves nothing, so none."""
    try:
        return sum(int(line.split()[2]) for line in file.read_text().splitlines() if line)
    except OSError:
        return 0


def _overflow(root: Path, kind: str) -> int:
    try:
        return int((root / f"proc/sys/kernel/overflow{kind}").read_text())
    except (OSError, ValueError):
        return 65534
