"""How much of a core a process had, and how long it waited for one."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Turns(msgspec.Struct, frozen=True):
    """Of all threads of some processes, in seconds: at work, and ready to work with no core free."""

    ran: float = 0.0
    waited: float = 0.0

    def __add__(self, other: Turns) -> Turns:
        return Turns(self.ran + other.ran, self.waited + other.waited)

    def since(self, before: Turns, seconds: float) -> Turns:
        """What has come to it in so many seconds, as shares of that time."""
        ran, waited = ((self.ran - before.ran) / seconds, (self.waited - before.waited) / seconds)
        return Turns(round(ran, 3), round(waited, 3))


def turns_of(pid: int) -> Turns:
    """Of one process so far; nothing where it is gone, or where the kernel does not say."""
    threads = Path(f"/proc/{pid}/task")
    try:
        return sum((_of_thread(thread) for thread in threads.iterdir()), start=Turns())
    except OSError:
        return Turns()


def _of_thread(thread: Path) -> Turns:
    ran, waited, _ = map(int, (thread / "schedstat").read_text().split())
    return Turns(ran / 1e9, waited / 1e9)
