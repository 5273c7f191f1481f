"""Measures how much processor time processes had, and how long they waited for a processor."""

from __future__ import annotations

from pathlib import Path

import msgspec


class CpuTimes(msgspec.Struct, frozen=True):
    """The seconds in which all threads of some processes ran, and in which they were ready without a free core."""

    ran: float = 0.0
    waited: float = 0.0

    def __add__(self, other: CpuTimes) -> CpuTimes:
        return CpuTimes(self.ran + other.ran, self.waited + other.waited)

    def since(self, before: CpuTimes, seconds: float) -> CpuTimes:
        """Returns the difference to an earlier value, as shares of the seconds between."""
        ran, waited = ((self.ran - before.ran) / seconds, (self.waited - before.waited) / seconds)
        return CpuTimes(round(ran, 3), round(waited, 3))


def turns_of(pid: int) -> CpuTimes:
    """Returns the times of a process so far; zero if it has ended or the kernel does not report them."""
    threads = Path(f"/proc/{pid}/task")
    try:
        return sum((_of_thread(thread) for thread in threads.iterdir()), start=CpuTimes())
    except OSError:
        return CpuTimes()


def _of_thread(thread: Path) -> CpuTimes:
    ran, waited, _ = map(int, (thread / "schedstat").read_text().split())
    return CpuTimes(ran / 1e9, waited / 1e9)
