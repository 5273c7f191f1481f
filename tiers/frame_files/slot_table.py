"""Knows which write owns each slot, which pages are being read, and which slots are free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pagetier.shm.safe_event import SafeCondition
from pagetier.tiers.disk.file_format import FrameExtent

_WINDOW: Final = 1 << 14  # slots examined at once
_MARKS: Final = (1 << 32) - 1
Slots = npt.NDArray[np.int64]


class SlotTable:
    """The owner of each slot: a mark that follows from the serial of a write, 0 for a free slot. Thread-safe.

    A slot is free again when the write that owns it was released and nothing reads it any more. `owners` has the
    serials of the writes that own the slots, 0 for free ones.
    """

    def __init__(self, owners: npt.NDArray[np.uint64]) -> None:
        self._owners = (owners % np.uint64(_MARKS) if owners.max(initial=0) >= _MARKS else owners).astype(np.uint32)
        owned = owners > 0
        np.add(self._owners, 1, out=self._owners, where=owned)  # _mark() of each
        self._owned = int(np.count_nonzero(owned))
        self._leaving = 0  # slots that are released and still read
        self._cursor = 0
        # No slot from here on was ever owned.
        self._top = len(owners) - int(np.argmax(owned[::-1])) if self._owned else 0
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
        """Gives free slots before `end` to several writes, the next ones after those that were taken last.

        Returns:
            The slots in the order of the writes, each of which gets its count; none if there are not enough.
        """
        total = sum(counts)
        with self._change.lock:
            slots = self._find(total, end)
            if len(slots) < total:
                return []
            self._owners[slots] = np.repeat([_mark(serial) for serial in serials], counts)
            self._owned += total
            self._cursor = int(slots[-1]) + 1
            self._top = max(self._top, int(slots.max()) + 1)
        return list(slots.tolist())

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
        mark = _mark(serial)
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
        mark = _mark(serial)
        for extent in extents:
            owners = self._of(extent)
            own = owners == mark
            self._owned -= int(np.count_nonzero(own))
            owners[own] = 0

    def _of(self, extent: FrameExtent) -> npt.NDArray[np.uint32]:
        return self._owners[extent.page : extent.page + extent.frames]


def _mark(serial: int) -> int:
    return serial % _MARKS + 1


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
