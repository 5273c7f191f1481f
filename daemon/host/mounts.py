"""Mounted file systems, from /proc/self/mountinfo."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

MOUNTINFO: Final = Path("/proc/self/mountinfo")
VOLATILE: Final = ("tmpfs", "ramfs")
"""The kinds of file systems whose files do not survive a reboot."""


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """One line of mountinfo: the part `root` of a file system is mounted at `point`."""

    root: str
    point: str
    kind: str
    options: tuple[str, ...]

    def option(self, name: str) -> str:
        """Returns the value of `name=...` among the file system's options, "" if the option is absent."""
        values = (option.partition("=") for option in self.options)
        return next((value for key, _, value in values if key == name), "")


def read_mounts(mountinfo: Path) -> tuple[Mount, ...]:
    """Returns all mounts in the file's order, none if it is missing. Of several at one point the last is visible."""
    try:
        lines = mountinfo.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ()
    return tuple(mount for mount in map(_mount, lines) if mount is not None)


def mount_of(path: Path, mounts: Sequence[Mount]) -> Mount | None:
    """Returns the mount that an absolute path without links lies in; None if it is not known."""
    around = [mount for mount in reversed(mounts) if path.is_relative_to(mount.point)]
    return max(around, key=lambda mount: len(mount.point), default=None)


def _mount(line: str) -> Mount | None:
    before, separator, after = line.partition(" - ")
    own, common = before.split(" "), after.split(" ")
    if not separator or len(own) < 6 or len(common) < 3:
        return None
    options = tuple((own[5] + "," + common[2]).split(","))
    return Mount(root=_plain(own[3]), point=_plain(own[4]), kind=common[0], options=options)


def _plain(escaped: str) -> str:
    """Decodes the octal escapes of mountinfo for blanks, tabs, newlines and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), escaped)
