"""Loads the inventory of the disk into the index while the worker reports it: the oldest pages as the coldest.

The worker sorts the pages (`tiers/worker/ordered_pages.py`) and says of each part how many pages are older, so each
part is loaded when it arrives, the newest one first, and the daemon keeps none of it. Engines are served between two
parts. A page that they stored before it was loaded has an entry already; it keeps that entry, which then says that the
page is on disk, too. This is safe: a key determines the bytes.

A namespace gets its record in the index with the first part that has pages of it, not when it is reported. A record
has pages only after `disk_report`, and the index gives a record without pages to the next namespace if the table is
full. So a part with many namespaces may take away a record that it has just got for another one: the pages of that one
have no number then and are dropped, like those for which `_find_room` found no room.

A page that the index has no room for is not lost silently: the index lists its key as a drop, so that the disk never
has pages that the index does not know of and could not evict.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt

from pagetier.daemon.common.namespaces import printable
from pagetier.daemon.disk.pending_flushes import DeviceFlushes
from pagetier.shm import clock
from pagetier.shm._core import DISK_HISTORY_LAYOUT, STORED_PAGE_LAYOUT, Owner
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.protocol import ProtocolError, Space
from pagetier.shm.row_arrays import dtype_of
from pagetier.shm.units import counted
from pagetier.tiers.worker_protocol import HistoryPart, InventoryPart

log = logging.getLogger("pagetierd.disk")

_NS: Final = 1e9
_LATEST: Final = 1 << 62  # nanoseconds, in the year 2116
_NO_SPACE: Final = 0xFFFFFFFF
_PAGE: Final = dtype_of(STORED_PAGE_LAYOUT)
_HISTORY: Final = dtype_of(DISK_HISTORY_LAYOUT)
_Pages = npt.NDArray[np.void]
_Mask = npt.NDArray[np.bool_]


class Inventory:
    """The pages that one worker reports. All of them are colder than pages used since the host started.

    Pages that were flushed before their part arrives are left out. A flush that comes later finds them in the index.

    Attributes:
        newest: The latest plausible stamp so far, 0 if there is none. Damaged pages may have any stamp.
        flushed: The keys of the pages that were left out.
    """

    def __init__(self, owner: Owner, flushes: DeviceFlushes, device: int = 0) -> None:
        self._owner = owner
        self._flushes = flushes
        self._device = device
        self._table: list[Space] = []
        self._fitting: set[int] = set()
        self._reported = 0
        self.newest = 0
        self.flushed = bytearray()

    def __len__(self) -> int:
        """Returns how many pages were reported so far."""
        return self._reported

    def add(self, part: InventoryPart) -> None:
        """Loads a part into the index. Raises ProtocolError if it has a namespace that no part has named."""
        self._find_room(part.table)
        pages = np.frombuffer(part.pages, _PAGE)
        spaces, stamps = pages["space"], pages["stamp"]
        if len(pages) and spaces.max() >= len(self._table):
            raise ProtocolError("InventoryPart: a namespace that is not in its table")
        self.newest = max(self.newest, int(stamps.max(initial=0, where=stamps < _LATEST)))
        ticks = np.arange(part.older + 1, part.older + len(pages) + 1, dtype="<u8")
        self._reported += len(pages)
        flushed = self._among_namespaces(spaces) | _among_pages(pages["key"], self._flushes.pages.digests())
        if flushed.any():
            self.flushed += pages["key"][flushed].tobytes()
            pages, ticks = pages[~flushed], ticks[~flushed]
        self._load(pages, ticks)
        point("inventory.loaded")

    def _load(self, pages: _Pages, ticks: npt.NDArray[np.uint64]) -> None:
        # The records are created for each part: between two of them, the index may have reused that of a namespace.
        numbers = self._create_records(pages["space"])[pages["space"]].tobytes()
        keys, sizes, slots = pages["key"].tobytes(), pages["size"].tobytes(), pages["slots"].tobytes()
        self._owner.disk_report(keys, sizes, numbers, ticks.tobytes(), self._device, slots)

    def add_histories(self, part: HistoryPart) -> None:
        """Loads what is known of the uses of pages that were reported."""
        pages = np.frombuffer(part.pages, _PAGE)
        latest = max(int(clock.date() * _NS), self.newest)
        ages = latest - np.minimum(pages["stamp"], np.uint64(latest))
        histories = pages["history"].copy().view(_HISTORY)
        self._owner.disk_histories(pages["key"].tobytes(), histories.tobytes(), ages.tobytes())

    def _among_namespaces(self, spaces: npt.NDArray[np.uint32]) -> _Mask:
        """Returns for each page whether its namespace was flushed."""
        flushed = self._flushes.namespaces.among
        named = {space: self._table[space] for space in np.unique(spaces).tolist()}
        gone = [at for at, space in named.items() if flushed(space.digest, printable(space.name))]
        return np.isin(spaces, gone) if gone else np.zeros(len(spaces), bool)

    def _find_room(self, table: Collection[Space]) -> None:
        """Adds namespaces to the table, and notes for which of them the index has room: the first ones."""
        if not table:
            return
        known = {space.digest for space in self._owner.spaces() if space.listed}
        room, lacking = self._owner.spare_spaces(), 0
        for at, space in enumerate(table, len(self._table)):
            new = space.digest not in known
            if new and not room:
                lacking += 1
                continue
            room -= new
            self._fitting.add(at)
        self._table += table
        if lacking:
            log.warning(
                "dropped %s from disk, the oldest: the table of namespaces is full",
                counted(lacking, "namespace"),
                extra=event("namespaces_dropped", namespaces=lacking),
            )

    def _create_records(self, spaces: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Creates the records in the index that these namespaces lack.

        A new record may take the place of one without pages, also of one that was created a moment before.

        Returns:
            The number of each namespace in the table, valid for these pages until the next request. A namespace whose
            record was reused has none.
        """
        numbers = np.full(len(self._table), _NO_SPACE, dtype="<u4")
        positions: dict[int, int] = {}
        for at in _by_last(spaces):
            number = self._create_record(self._table[at]) if at in self._fitting else -1
            if number >= 0:
                numbers[positions.get(number, at)] = _NO_SPACE
                numbers[at], positions[number] = number, at
        return numbers

    def _create_record(self, space: Space) -> int:
        return self._owner.space(space.digest, printable(space.name), space.page_tokens, space.window, space.group)


def _among_pages(keys: _Pages, forgotten: Collection[bytes] | None) -> _Mask:
    """Returns for each page whether it was forgotten. Texts of equal length can be compared as they are."""
    if forgotten is None:
        return np.ones(len(keys), dtype=bool)
    if not forgotten:
        return np.zeros(len(keys), dtype=bool)
    return np.isin(keys.copy().view("S32"), np.array(list(forgotten), dtype="S32"))


def _by_last(spaces: npt.NDArray[np.uint32]) -> list[int]:
    """Returns the namespaces of these pages, ordered by the position of their last page."""
    found, last = np.unique(spaces[::-1], return_index=True)
    return [int(space) for space in found[np.argsort(-last)]]
