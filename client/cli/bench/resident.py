"""Measures the resident memory of an engine and of a daemon."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_SHARED_MEMORY: Final = Path("/dev/shm")
_BLOCK_BYTES: Final = 512  # of st_blocks
# A mapping begins with its addresses and ends with its path, and has its sizes in the lines below.
_MAPPING: Final = re.compile(r"^[0-9a-f]+-[0-9a-f]+ ")
_SIZE: Final = re.compile(r"^Pss: +(\d+) kB")


def session_bytes(leader: int, segments: str) -> int:
    """Returns the resident bytes of all processes of a session. Memory that several processes map counts once.

    Args:
        leader: The session's ID.
        segments: The name of the daemon whose segments are left out, since they are the daemon's memory.
    """
    return sum(_private_bytes(pid, segments) for pid in session_processes(leader))


def segment_bytes(name: str) -> int:
    """Returns the bytes of a daemon's segments that are in memory."""
    return sum(file.stat().st_blocks * _BLOCK_BYTES for file in _SHARED_MEMORY.glob(f"{name}.*"))


def session_processes(leader: int) -> list[int]:
    """Returns the living processes of a session."""
    pids = (int(folder.name) for folder in _PROC.iterdir() if folder.name.isdigit())
    return [pid for pid in pids if (fields := _stat(pid)) and int(fields[3]) == leader and fields[0] not in "ZX"]


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _private_bytes(pid: int, segments: str) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps").read_text(errors="replace").splitlines()
    except OSError:  # it has ended
        return 0
    kib, counted, left_out = 0, True, f"{_SHARED_MEMORY}/{segments}."
    for line in lines:
        if _MAPPING.match(line):
            counted = left_out not in line
        elif counted and (size := _SIZE.match(line)):
            kib += int(size[1])
    return kib * 1024


def available_bytes() -> int:
    """Returns the memory that new processes can use."""
    (available,) = re.findall(r"^MemAvailable: +(\d+) kB$", (_PROC / "meminfo").read_text(), re.MULTILINE)
    return int(available) * 1024
