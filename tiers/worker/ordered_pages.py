"""Sorts the pages of a catalogue for the daemon's index, which then loads each part as it comes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from pagetier.shm._core import DISK_HISTORY_LAYOUT, STORED_PAGE_LAYOUT
from pagetier.shm.protocol import Space
from pagetier.shm.row_arrays import dtype_of
from pagetier.tiers.base import StoredPages
from pagetier.tiers.worker_protocol import HistoryPart, InventoryPart

_PART: Final = 8192  # pages: the daemon loads a part in two milliseconds, between requests of engines
_PAGE: Final = dtype_of(STORED_PAGE_LAYOUT)
_HISTORY: Final = dtype_of(DISK_HISTORY_LAYOUT)
_BYTES: Final = np.dtype(f"V{_PAGE.itemsize}")  # numpy copies bytes as a whole, and the fields of a row one by one
_Order = npt.NDArray[np.intp]


class OrderedPages:
    """All pages of a catalogue, in the memory of this process.

    Args:
        batches: The pages in any order.
    """

    def __init__(self, batches: Iterable[StoredPages]) -> None:
        numbers: dict[Space, int] = {}
        rows = [_renumbered(batch, numbers) for batch in batches]
        self._pages = np.concatenate([np.empty(0, _BYTES), *rows]).view(_PAGE)
        self._stamps = self._pages["stamp"].copy()  # a sort reads them often: they lie next to each other
        self._table = self._sort_table(tuple(numbers))

    def _sort_table(self, table: tuple[Space, ...]) -> tuple[Space, ...]:
        """Sorts the namespaces that have pages, those with the newest first: the index may lack room for the others."""
        if len(table) == 1:
            return table
        spaces = self._pages["space"]
        pages, last = np.bincount(spaces, minlength=len(table)), np.zeros(len(table), "<u8")
        np.maximum.at(last, spaces, self._stamps)
        newest = [int(space) for space in np.argsort(~last, kind="stable") if pages[space]]
        positions = np.zeros(len(table), "<u4")
        positions[newest] = np.arange(len(newest))
        self._pages["space"] = positions[spaces]
        return tuple(table[space] for space in newest)

    def __len__(self) -> int:
        return len(self._pages)

    def parts(self) -> Iterator[InventoryPart | HistoryPart]:
        """Yields the newest pages, then the others from the oldest on, then those with a history, by depth.

        The newest ones are what engines are most likely to ask for, and they are found without sorting all pages. The
        index evicts the oldest ones first, and links pages fastest if the first ones of a prompt come first.
        """
        table = self._table
        for older, order in self._sorted():
            for number, pages in enumerate(self._parts_of(order)):
                yield InventoryPart(pages, table, older + number * _PART)
                table = ()
        histories = self._pages["history"].copy().view(_HISTORY)
        depths = histories["depth"]
        short = depths.astype(np.min_scalar_type(depths.max(initial=0)))  # numpy sorts 16 bits in a seventh of the time
        by_depth: _Order = np.argsort(short, kind="stable")
        for pages in self._parts_of(by_depth[histories["uses"][by_depth] > 0]):
            yield HistoryPart(pages)

    def _sorted(self) -> Iterator[tuple[int, _Order]]:
        """Yields the newest pages, then all others: how many are older, and their positions, the oldest one first."""
        older = max(len(self) - _PART, 0)
        split = np.argpartition(self._stamps, older) if older else np.arange(len(self))
        for first, some in ((older, split[older:]), (0, split[:older])):
            yield first, some[np.argsort(self._stamps[some], kind="stable")]

    def _parts_of(self, order: _Order) -> Iterator[bytes]:
        pages = self._pages.view(_BYTES)
        for first in range(0, len(order), _PART):
            yield pages.take(order[first : first + _PART]).tobytes()


def _renumbered(batch: StoredPages, numbers: dict[Space, int]) -> npt.NDArray[np.void]:
    """Returns the rows of a batch with the numbers of their namespaces in a table of all batches, which it extends."""
    table = np.array([numbers.setdefault(space, len(numbers)) for space in batch.table], dtype="<u4")
    if (table == np.arange(len(table))).all():  # most tiers have one namespace: their rows need no copy
        return np.frombuffer(batch.pages, _BYTES)
    rows = np.frombuffer(bytearray(batch.pages), _PAGE)
    rows["space"] = table[rows["space"]]
    return rows.view(_BYTES)
