"""Loads the inventory of the disk into the index: the oldest pages as the coldest, in batches between requests.

The worker reports all pages first (`add`), then they are loaded (`load_into_index`), because the order of eviction
needs the stamps of all. Engines are served while this runs. A page that they stored before it was loaded has an entry
already; it keeps that entry, which then says that the page is on disk, too. This is safe: a key determines the bytes.

A namespace gets its record in the index with the first batch that has pages of it, not when it is reported. A record
has pages only after `disk_report`, and the index gives a record without pages to the next namespace if the table is
full. So a batch with many namespaces may take away a record that it has just got for another one: the pages of that one
have no number then and are dropped, like those for which `_fitting` found no room.

A page that the index has no room for is not lost silently: the index lists its key as a drop, so that the disk never
has pages that the index does not know of and could not evict.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

import numpy as np
import numpy.typing as npt

from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.namespaces import printable
from pagetier.shm import clock
from pagetier.shm._core import DISK_HISTORY_LAYOUT, STORED_PAGE_LAYOUT, Owner
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.protocol import Space
from pagetier.shm.row_arrays import dtype_of
from pagetier.shm.units import counted
from pagetier.tiers.worker_protocol import InventoryPart

log = logging.getLogger("pagetierd.disk")

_NS: Final = 1e9
_AT_ONCE: Final = 10_000
_LATEST: Final = 1 << 62  # nanoseconds, in the year 2116
_NO_SPACE: Final = 0xFFFFFFFF
_PAGE: Final = dtype_of(STORED_PAGE_LAYOUT)
_HISTORY: Final = dtype_of(DISK_HISTORY_LAYOUT)


class Inventory:
    """Collects the pages that a worker reports, then loads them into the index.

    The pages keep the order of their last use. All of them are colder than pages used since the host started.
    """

    def __init__(self, owner: Owner, device: int = 0) -> None:
        self._owner = owner
        self._device = device
        self._parts: list[npt.NDArray[np.void]] = []
        self._table: dict[Space, int] = {}

    def add(self, report: InventoryPart) -> None:
        """Adds one report of the worker."""
        table = np.array([self._table.setdefault(space, len(self._table)) for space in report.table], dtype="<u4")
        pages = np.frombuffer(report.pages, _PAGE).copy()
        pages["space"] = table[pages["space"]]
        self._parts.append(pages)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def newest(self) -> int:
        """The latest plausible stamp, 0 if there is none. Damaged pages may have any stamp."""
        stamps = self._pages()["stamp"]
        return int(stamps.max(initial=0, where=stamps < _LATEST))

    def _pages(self) -> npt.NDArray[np.void]:
        """Returns all pages; their `space` is a position in the table of all reports."""
        self._parts = [np.concatenate([np.empty(0, _PAGE), *self._parts])]
        return self._parts[0]

    async def load_into_index(
        self, flushed: Callable[[bytes], bool], forgotten: Callable[[], Collection[bytes] | None] = tuple
    ) -> bytes:
        """Loads all pages into the index, except those that were flushed before or while this runs.

        Args:
            flushed: Returns whether the namespace with this digest was flushed.
            forgotten: Returns the keys of single pages that were flushed; None: all were.

        Returns:
            The keys of all flushed pages, one after the other.
        """
        pages = self._pages()
        keys, spaces = pages["key"], pages["space"]
        order = np.argsort(pages["stamp"], kind="stable")
        fitting = self._fitting(spaces[order])
        for first in range(0, len(order), _AT_ONCE):
            at = np.arange(first, min(first + _AT_ONCE, len(order)))
            at = at[~self._among(flushed)[spaces[order[at]]] & ~_among_pages(keys[order[at]], forgotten())]
            which, ticks = order[at], (at + 1).astype("<u8").tobytes()
            # Created for each batch: while others were loaded, the index may have reused the record of a namespace.
            numbers = self._create_records(spaces[which], fitting)[spaces[which]].tobytes()
            self._owner.disk_report(keys[which].tobytes(), pages["size"][which].tobytes(), numbers, ticks, self._device)
            point("inventory.loaded")
            await loop_clock.give_way()
        await self._load_histories(pages)
        # Asked again at the end: these are the pages of flushes that came before or while the pages were loaded.
        drops: bytes = keys[self._among(flushed)[spaces] | _among_pages(keys, forgotten())].tobytes()
        return drops

    async def _load_histories(self, pages: npt.NDArray[np.void]) -> None:
        """Loads what is known of the uses of all pages, those at the beginning of their prompts first."""
        stamps, histories = pages["stamp"], pages["history"].copy().view(_HISTORY)
        order = np.argsort(histories["depth"], kind="stable")
        order = order[histories["uses"][order] > 0]
        latest = max(int(clock.date() * _NS), self.newest)
        for first in range(0, len(order), _AT_ONCE):
            at = order[first : first + _AT_ONCE]
            ages = (latest - np.minimum(stamps[at], np.uint64(latest))).tobytes()
            self._owner.disk_histories(pages["key"][at].tobytes(), histories[at].tobytes(), ages)
            await loop_clock.give_way()

    def _among(self, flushed: Callable[[bytes], bool]) -> npt.NDArray[np.bool_]:
        """Returns for each namespace in the table whether it was flushed."""
        return np.array([flushed(space.digest) for space in self._table], dtype=bool)

    def _fitting(self, spaces: npt.NDArray[np.uint32]) -> frozenset[int]:
        """Returns the namespaces for which the index has room, those with the newest pages first.

        Args:
            spaces: The namespace of each page, the oldest page first.
        """
        known = {space.digest for space in self._owner.spaces() if space.listed}
        table, room, fitting = list(self._table), self._owner.spare_spaces(), set()
        newest = _by_last(spaces)[::-1]
        for at in newest:
            new = table[at].digest not in known
            if new and not room:
                continue
            room -= new
            fitting.add(at)
        if left := len(newest) - len(fitting):
            log.warning(
                "dropped %s from disk, the oldest: the table of namespaces is full",
                counted(left, "namespace"),
                extra=event("namespaces_dropped", namespaces=left),
            )
        return frozenset(fitting)

    def _create_records(self, spaces: npt.NDArray[np.uint32], fitting: frozenset[int]) -> npt.NDArray[np.uint32]:
        """Creates the records in the index that these namespaces lack.

        A new record may take the place of one without pages, also of one that was created a moment before.

        Returns:
            The number of each namespace in the table, valid for these pages until the next request. A namespace whose
            record was reused has none.
        """
        numbers = np.full(len(self._table), _NO_SPACE, dtype="<u4")
        table, positions = list(self._table), dict[int, int]()
        for at in _by_last(spaces):
            number = self._create_record(table[at]) if at in fitting else -1
            if number >= 0:
                numbers[positions.get(number, at)] = _NO_SPACE
                numbers[at], positions[number] = number, at
        return numbers

    def _create_record(self, space: Space) -> int:
        return self._owner.space(space.digest, printable(space.name), space.page_tokens, space.window, space.group)


def _among_pages(keys: npt.NDArray[np.void], forgotten: Collection[bytes] | None) -> npt.NDArray[np.bool_]:
    """Returns for each page whether it was forgotten. Texts of equal length can be compared as they are."""
    if forgotten is None:
        return np.ones(len(keys), dtype=bool)
    return np.isin(keys.view("S32"), np.array(list(forgotten), dtype="S32"))


def _by_last(spaces: npt.NDArray[np.uint32]) -> list[int]:
    """Returns the namespaces of these pages, ordered by the position of their last page."""
    last = np.full(int(spaces.max(initial=0)) + 1, -1)
    last[spaces] = np.arange(len(spaces))
    return [int(space) for space in np.argsort(last) if last[space] >= 0]
