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
        self._order: _Order = np.argsort(self._pages["stamp"], kind="stable")
        self._table = self._sort_table(tuple(numbers))

    def _sort_table(self, table: tuple[Space, ...]) -> tuple[Space, ...]:
        """Sorts the namespaces that have pages, those with the newest first: the index may lack room for the others."""
        spaces = self._pages["space"]
        last = np.full(len(table), -1)
        last[spaces[self._order]] = np.arange(len(self._order))
        newest = [int(space) for space in np.argsort(-last) if last[space] >= 0]
        positions = np.zeros(len(table), "<u4")
        positions[newest] = np.arange(len(newest))
        self._pages["space"] = positions[spaces]
        return tuple(table[space] for space in newest)

    def __len__(self) -> int:
        return len(self._order)

    def parts(self) -> Iterator[InventoryPart | HistoryPart]:
        """Yields the pages, the oldest first, then those with a history, the first ones of their prompts first.

        The eviction order of the index needs the former, and its links between pages the latter.
        """
        table = self._table
        for pages in self._parts_of(self._order):
            yield InventoryPart(pages, table)
            table = ()
        histories = self._pages["history"].copy().view(_HISTORY)
        by_depth: _Order = np.argsort(histories["depth"], kind="stable")
        for pages in self._parts_of(by_depth[histories["uses"][by_depth] > 0]):
            yield HistoryPart(pages)

    def _parts_of(self, order: _Order) -> Iterator[bytes]:
        pages = self._pages.view(_BYTES)
        for first in range(0, len(order), _PART):
            yield pages[order[first : first + _PART]].tobytes()


def _renumbered(batch: StoredPages, numbers: dict[Space, int]) -> npt.NDArray[np.void]:
    """Returns the rows of a batch with the numbers of their namespaces in a table of all batches, which it extends."""
    table = np.array([numbers.setdefault(space, len(numbers)) for space in batch.table], dtype="<u4")
    rows = np.frombuffer(bytearray(batch.pages), _PAGE)
    rows["space"] = table[rows["space"]]
    return rows.view(_BYTES)
