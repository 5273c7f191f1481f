"""Finds the daemon that uses segments, and what it listens on: for a check beside it, which must not disturb it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOCKS: Final = Path("/proc/locks")
_PORTS: Final = ("net/tcp", "net/tcp6")
_LISTENS: Final = "0A"


def holder_of(file: os.stat_result) -> int:
    """Returns the PID of the process that has locked a file; 0 if it cannot be seen from here."""
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    with suppress(OSError):
        for line in _LOCKS.read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5] == f"{device}:{file.st_ino}":
                return max(0, int(words[4]))
    return 0


def has_port(pid: int, port: int) -> bool:
    """Returns whether a process listens on a port of its network namespace. True if this user may not see that."""
    process = Path(f"/proc/{pid}")
    try:
        return not _open_files(process).isdisjoint(_listening(process, port))
    except FileNotFoundError:
        return False  # it has just ended
    except OSError:
        return True


def _open_files(process: Path) -> set[str]:
    found = set()
    for each in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # it has just been closed
            found.add(str(each.readlink()))
    return found


def _listening(process: Path, port: int) -> Iterator[str]:
    """Yields the sockets that listen on a port, as the links in /proc name them. Raises OSError."""
    for table in _PORTS:
        with suppress(FileNotFoundError):  # a kernel without IPv6
            for line in (process / table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{words[9]}]"
