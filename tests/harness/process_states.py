"""What the kernel says of processes, by their PIDs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Returns the processes that a process started, by any of its threads; none if it has ended."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def arguments_of(pid: int) -> list[str]:
    """Returns the command line of a process; nothing if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


def workers_of(pid: int) -> list[int]:
    """Returns the workers of a daemon: one for each device of the disk tier that has one, and that of the fleet."""
    return [child for child in children_of(pid) if is_worker(child)]


def is_worker(pid: int) -> bool:
    """Returns whether a process is a worker."""
    return any("pagetier.tiers.worker" in word for word in arguments_of(pid))


def state_of(pid: int) -> str:
    """Returns the state of a process or a thread, such as "T" of one that is stopped; "X" if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def is_alive(pid: int) -> bool:
    """Returns whether a process has not ended, even if its parent has not collected its status."""
    return state_of(pid) not in ("Z", "X")
