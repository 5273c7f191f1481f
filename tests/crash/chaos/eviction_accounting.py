"""How many pages can have left a cache for good, by the daemon's own counters: memory, and the disk if there is one."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from oracle.checker import WORKER_NAME


class Counters(Protocol):
    """What the index tells of itself: an Observer of it."""

    def header(self) -> dict[str, int]:
        """The numbers in its header."""

    def slots(self) -> list[dict[str, Any]]:
        """Who is attached."""


class _Disk(msgspec.Struct, frozen=True):
    """Whose disk there is. worker: pid of who has it, 0: nobody; incarnation: of the index, one for each daemon."""

    worker: int
    incarnation: int
    open: bool


_NO_DISK = _Disk(0, 0, open=False)


class Leaving:
    """Looks now and then at the counters.

    A page that leaves memory while a disk is open is on it (and goes with `disk_evicted`), or was not to be written
    (`disk_spared`, or it left the disk before: `disk_evicted`), or was not written in time (`disk_lost`). While no disk
    is open it may be gone: all that left memory between two looks counts, unless one worker had its disk open all the
    time. What is counted here is never less than what has left; it may be more.
    """

    def __init__(self, observer: Counters) -> None:
        self._observer = observer
        self._disk = _NO_DISK
        self._evicted = 0
        self._unheld = 0

    def look(self) -> None:
        """A worker has its slot before its disk opens, and until that closes: so the order of reading matters."""
        disk = self._look_at_disk()
        evicted = self._observer.header()["evicted"]
        if not self._open_until_now():
            self._unheld += evicted - self._evicted
        self._disk, self._evicted = disk, evicted

    @property
    def pages(self) -> int:
        """So many at most have left until now."""
        self.look()
        header = self._observer.header()
        return self._unheld + header["disk_lost"] + header["disk_evicted"] + header["disk_spared"]

    def _open_until_now(self) -> bool:
        now = self._look_at_disk()
        same = (self._disk.worker, self._disk.incarnation) == (now.worker, now.incarnation)
        return self._disk.open and self._disk.worker > 0 and same

    def _look_at_disk(self) -> _Disk:
        """The slots first: a worker that has one has had its disk until then, and what is open later is its own."""
        workers = [slot["pid"] for slot in self._observer.slots() if slot["name"] == WORKER_NAME]
        header = self._observer.header()
        worker = int(workers[0]) if len(workers) == 1 else 0
        return _Disk(worker, header["incarnation"], open=header["disk_frames"] > 0)
