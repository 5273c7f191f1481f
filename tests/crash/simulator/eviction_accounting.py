"""Counts the pages that may have left the cache for good, by the daemon's own counters for memory and disk."""

from __future__ import annotations

from typing import NamedTuple

from oracle.checker import WORKER_NAME
from pagetier.shm._core import Observer


class _Disk(NamedTuple):
    """The disk tier in use: the pids of its workers, the incarnation of the index, and whether a device is open."""

    workers: tuple[int, ...] = ()
    incarnation: int = 0
    is_open: bool = False


class EvictionAccounting:
    """An upper limit for the number of pages that left the cache for good, from samples of the counters.

    A page that leaves memory while a disk is open is on the disk (and counts in `disk_evicted` when it leaves that),
    could not be written (`disk_failed`), was not to be written (`disk_skipped`, or `disk_evicted` if it left the disk
    before), or was not written in time (`disk_lost`). While no disk is open the page may be lost: all pages that left
    memory between two samples count, unless the same workers were there and a device was open all the time. The result
    is never less than the number of lost pages; it may be more.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._disk = _Disk()
        self._evicted = 0
        self._lost = 0

    def sample(self) -> None:
        """Takes a sample.

        A worker has its slot before its disk opens and until it closes, so the order of reading matters.
        """
        disk = self._disk_in_use()
        evicted = self._observer.header().evicted
        if not self._open_until_now():
            self._lost += evicted - self._evicted
        self._disk, self._evicted = disk, evicted

    @property
    def pages(self) -> int:
        """The largest number of pages that may have been lost until now."""
        self.sample()
        header = self._observer.header()
        return self._lost + header.disk_lost + header.disk_evicted + header.disk_skipped + header.disk_failed

    def _open_until_now(self) -> bool:
        return self._disk.is_open and bool(self._disk.workers) and self._disk[:2] == self._disk_in_use()[:2]

    def _disk_in_use(self) -> _Disk:
        """Returns the disk in use.

        The slots are read first, so that an open disk belongs to the worker that had a slot.
        """
        slots = self._observer.attachments_with_pins()
        workers = tuple(sorted(slot.pid for slot in slots if slot.name == WORKER_NAME))
        header = self._observer.header()
        return _Disk(workers, header.incarnation, header.disk_frames > 0)
