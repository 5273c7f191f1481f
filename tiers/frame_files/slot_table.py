"""Knows which write owns each slot, which pages are being read, and which slots are free."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from pagetier.shm.safe_event import SafeCondition
from pagetier.tiers.disk.file_format import FrameExtent
from pagetier.tiers.frame_files.records import mark_of

_WINDOW: Final = 1 << 14  # slots examined at once
_CHOICE: Final = 4  # times as many free slots as are taken are looked at: in 8 times as many were hardly more long rows
Slots = npt.NDArray[np.int64]


class SlotTable:
    """The owner of each slot: the mark of a write, 0 for a free slot. Thread-safe.

    A slot is free again when the write that owns it was released and nothing reads it any more. `owners` belongs to the
    table from then on.
    """

    def __init__(self, owners: npt.NDArray[np.uint32]) -> None:
        self._owners = owners
        self._owned = int(np.count_nonzero(self._owners))
        self._leaving = 0  # slots that are released and still read
        self._cursor = 0
        # No slot from here on was ever owned.
        self._top = len(owners) - int(np.argmax(self._owners[::-1] > 0)) if self._owned else 0
        self._readers: Counter[int] = Counter()
        self._released: dict[int, Sequence[FrameExtent]] = {}
        self._change = SafeCondition()

    @property
    def length(self) -> int:
        """The number of slots."""
        return len(self._owners)

    def lengthen(self, length: int) -> None:
        """Adds free slots at the end until there are so many. The memory is that of the files, not of the cap."""
        with self._change.lock:
            if (more := length - len(self._owners)) > 0:
                self._owners = np.concatenate((self._owners, np.zeros(more, np.uint32)))

    @property
    def used(self) -> int:
        """The number of slots that belong to pages."""
        return self._owned - self._leaving

    def free_below(self, end: int) -> int:
        """Returns the number of free slots before `end`. Slots that are still read are not free."""
        with self._change.lock:
            if end >= self._top:
                return end - self._owned
            return int(np.count_nonzero(self._owners[:end] == 0))

    def take(self, serials: Sequence[int], counts: Sequence[int], end: int) -> list[int]:
        """Gives free slots before `end` to several writes, from among the next ones after those that were taken last.

        Pages leave in another order than they came, and need various numbers of slots: a write gets a row of free slots
        that it fills as well as possible, since each part costs a system call in a read, and time at the opening.

        Returns:
            The slots in the order of the writes, each of which gets its count; none if there are not enough.
        """
        total = sum(counts)
        with self._change.lock:
            free = self._find(total * _CHOICE, end)
            if len(free) < total:
                return []
            slots = _fitting(_rows(free), counts)
            self._owners[slots] = np.repeat([mark_of(serial) for serial in serials], counts)
            self._owned += total
            self._cursor = slots[-1] + 1
            self._top = max(self._top, max(slots) + 1)
        return slots

    def _find(self, count: int, end: int) -> Slots:
        cursor = self._cursor if self._cursor < end else 0
        found = _first_free(self._owners, cursor, end, count)
        if len(found) < count:
            found = np.concatenate((found, _first_free(self._owners, 0, cursor, count - len(found))))
        return found

    def wait_for_readers(self, seconds: float) -> bool:
        """Waits until no released slot is read any more. Returns False if that takes longer."""
        with self._change.lock:
            return self._change.wait_for(lambda: not self._released, seconds)

    def begin_reading(self, serial: int, extents: Sequence[FrameExtent]) -> bool:
        """Keeps the slots of a write from being reused until end_reading(). Returns False if it does not own them."""
        mark = mark_of(serial)
        with self._change.lock:
            if not all((self._of(extent) == mark).all() for extent in extents):
                return False
            self._readers[serial] += 1
            return True

    def end_reading(self, serial: int) -> None:
        """Ends what begin_reading() began."""
        with self._change.lock:
            self._readers[serial] -= 1
            if self._readers[serial]:
                return
            del self._readers[serial]
            if (extents := self._released.pop(serial, None)) is not None:
                self._leaving -= sum(extent.frames for extent in extents)
                self._free(serial, extents)
                self._change.wake_all()

    def release(self, serial: int, extents: Sequence[FrameExtent]) -> None:
        """Frees the slots of a write that no record names any more, as soon as they are not read any more."""
        with self._change.lock:
            if self._readers[serial]:
                self._released[serial] = extents
                self._leaving += sum(extent.frames for extent in extents)
            else:
                del self._readers[serial]
                self._free(serial, extents)

    def _free(self, serial: int, extents: Sequence[FrameExtent]) -> None:
        """Frees only what the write owns: a stale record may name slots of another one."""
        mark = mark_of(serial)
        for extent in extents:
            owners = self._of(extent)
            own = owners == mark
            self._owned -= int(np.count_nonzero(own))
            owners[own] = 0

    def _of(self, extent: FrameExtent) -> npt.NDArray[np.uint32]:
        return self._owners[extent.page : extent.page + extent.frames]


def _first_free(owners: npt.NDArray[np.uint32], begin: int, end: int, count: int) -> Slots:
    """Returns the first free slots of a range, at most `count`."""
    found: list[Slots] = []
    missing = count
    for first in range(begin, end, _WINDOW):
        if missing <= 0:
            break
        free = np.flatnonzero(owners[first : min(first + _WINDOW, end)] == 0)[:missing] + first
        found.append(free)
        missing -= len(free)
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _rows(slots: Slots) -> list[tuple[int, int]]:
    """Returns the length and the first slot of each row of slots that follow each other, the shortest first."""
    begins = np.flatnonzero(np.diff(slots, prepend=-2) != 1)
    lengths = np.diff(begins, append=len(slots))
    return sorted(zip(lengths.tolist(), slots[begins].tolist(), strict=True))


def _fitting(rows: list[tuple[int, int]], counts: Sequence[int]) -> list[int]:
    """Takes slots from sorted rows, which have enough for all counts: those of each count in turn."""
    return list(chain.from_iterable(part for count in counts for part in _parts(rows, count)))


def _parts(rows: list[tuple[int, int]], count: int) -> Iterator[range]:
    """Takes the shortest row that is long enough, or the longest one and what is missing from others."""
    while count:
        length, first = rows.pop(min(bisect_left(rows, (count,)), len(rows) - 1))
        part = range(first, first + min(count, length))
        if length > len(part):
            insort(rows, (length - len(part), part.stop))
        count -= len(part)
        yield part
