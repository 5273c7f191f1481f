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
_ACCEPTS: Final = 1 << 16  # __SO_ACCEPTCON, the flag of a Unix socket that listens


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
        return not set(_open_files(process)).isdisjoint(_listening(process, port))
    except FileNotFoundError:
        return False  # it has just ended
    except OSError:
        return True


def sockets_of(pid: int) -> list[str]:
    """Returns the paths of the Unix sockets on which a process listens; none if this user may not see them."""
    process = Path(f"/proc/{pid}")
    with suppress(OSError):
        listening = dict(_unix_sockets(process))
        return [listening[link] for link in _open_files(process) if link in listening]
    return []


def _open_files(process: Path) -> list[str]:
    """Returns what the descriptors lead to, by their numbers. Raises OSError."""
    found = []
    for each in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # it has just been closed
            found.append(str(each.readlink()))
    return found


def _unix_sockets(process: Path) -> Iterator[tuple[str, str]]:
    """Yields the Unix sockets that listen, as the links in /proc name them, and their paths. Raises OSError."""
    for line in (process / "net/unix").read_text(errors="replace").splitlines()[1:]:
        words = line.split(maxsplit=7)
        if int(words[3], 16) & _ACCEPTS and len(words) == 8:  # those without a path have no eighth word
            yield f"socket:[{words[6]}]", words[7]


def _listening(process: Path, port: int) -> Iterator[str]:
    """Yields the sockets that listen on a port, as the links in /proc name them. Raises OSError."""
    for table in _PORTS:
        with suppress(FileNotFoundError):  # a kernel without IPv6
            for line in (process / table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{words[9]}]"
