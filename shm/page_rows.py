"""The rows of messages about several pages: each row is one page, and its fields lie where the core's struct has them.

A message carries the rows as bytes, which the core reads and writes in one pass. Python reads single rows, or all of
them, where it needs a page's fields; code with many pages and numpy reads columns (`shm/row_arrays.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from pagetier.shm._core import (
    KEY_BYTES,
    LOCATED_PAGE_LAYOUT,
    PAGE_ANSWER_LAYOUT,
    PAGE_REQUEST_LAYOUT,
    PAGE_TO_FIND_LAYOUT,
    PAGE_TO_READ_LAYOUT,
    PAGE_TO_WRITE_LAYOUT,
    STORED_PAGE_LAYOUT,
    StructLayout,
)

_FORMATS: Final = {1: "B", 4: "I", 8: "Q"}  # by the bytes of a field; others are bytes


class PageRequest(NamedTuple):
    """A page of Reserve: its key, and the bytes of the whole page."""

    key: bytes
    size: int


class PageAnswer(NamedTuple):
    """A page of Reserved: a ReserveOutcome, and the page's entry and serial."""

    outcome: int
    entry: int
    serial: int


class PageToFind(NamedTuple):
    """A page that may be in the fleet. `space` is the position of its namespace in the message's table."""

    key: bytes
    space: int


class LocatedPage(NamedTuple):
    """A page that is to be read from disk, or from the fleet.

    Attributes:
        key: Its key.
        size: Its bytes in the fleet, 0 if it is not there.
        space: The position of its namespace in the message's table.
    """

    key: bytes
    size: int
    space: int


class PageToWrite(NamedTuple):
    """A page of a write to a lower tier.

    Attributes:
        key: Its key.
        history: What is known of its uses, HISTORY_BYTES.
        size: Its bytes.
        serial: Its serial, which identifies it forever together with `entry`.
        stamp: Its recency in nanoseconds of the realtime clock.
        entry: Its entry in the index.
        space: The number of its namespace.
        reservation: The reservation that stored it.
    """

    key: bytes
    history: bytes
    size: int
    serial: int
    stamp: int
    entry: int
    space: int
    reservation: int


class PageToRead(NamedTuple):
    """A page that is to be read from a lower tier, as the index answers.

    Attributes:
        key: Its key.
        size: Its bytes, 0 if no tier of this host knows it.
        serial: Its serial.
        entry: Its entry in the index, whose frames the reader fills if they were granted.
        space: The number of its namespace.
        outcome: A ReserveOutcome.
        device: The device that it is granted to, DISK_DEVICES for the fleet. No meaning if it was not granted.
    """

    key: bytes
    size: int
    serial: int
    entry: int
    space: int
    outcome: int
    device: int


class StoredPage(NamedTuple):
    """A page that a lower tier has.

    `space` is the position of its namespace in the message's table, `slots` the slots that it takes; 0: as many as its
    bytes fill.
    """

    key: bytes
    history: bytes
    size: int
    stamp: int
    space: int
    slots: int = 0


_Row = TypeVar("_Row", PageRequest, PageAnswer, PageToFind, LocatedPage, PageToWrite, PageToRead, StoredPage)


class RowType(Generic[_Row]):
    """Packs and reads the rows of one struct of the core."""

    def __init__(self, layout: StructLayout, row: type[_Row]) -> None:
        formats = [_FORMATS.get(size, f"{size}s") for _, _, size in layout.fields]
        used = struct.calcsize("<" + "".join(formats))
        self._struct = struct.Struct(f"<{''.join(formats)}{layout.size - used}x")
        self._row: type[_Row] = row
        self._offsets = {name: offset for name, offset, _ in layout.fields}
        assert self._struct.size == layout.size and row._fields == tuple(name for name, _, _ in layout.fields)

    def pack(self, rows: Iterable[_Row]) -> bytes:
        """Returns the bytes of rows."""
        return b"".join(self._struct.pack(*row) for row in rows)

    def read(self, packed: bytes) -> Iterator[_Row]:
        """Yields all rows."""
        return map(self._row._make, self._struct.iter_unpack(packed))

    def row(self, packed: bytes, number: int) -> _Row:
        """Returns one row."""
        row: _Row = self._row._make(self._struct.unpack_from(packed, number * self._struct.size))
        return row

    def codes(self, packed: bytes, field: str) -> bytes:
        """Returns a field of one byte, of all rows. A few nanoseconds a row, where a row as an object takes a µs."""
        return packed[self._offsets[field] :: self._struct.size]

    def first(self, packed: bytes, count: int) -> bytes:
        """Returns the bytes of the first rows."""
        return packed[: count * self._struct.size]

    def count(self, packed: bytes) -> int:
        """Returns the number of whole rows."""
        return len(packed) // self._struct.size

    def is_whole(self, packed: bytes) -> bool:
        """Returns whether the bytes are a whole number of rows."""
        return not len(packed) % self._struct.size


class ColumnType:
    """Reads the values of one field of a list of pages, which all have the same width."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._struct = struct.Struct(f"{width}s")

    def count(self, column: bytes) -> int:
        """Returns the number of whole values."""
        return len(column) // self._width

    def is_whole(self, column: bytes) -> bool:
        """Returns whether the bytes are a whole number of values."""
        return not len(column) % self._width

    def split(self, column: bytes) -> list[bytes]:
        """Returns all values."""
        return [value for (value,) in self._struct.iter_unpack(column)]

    def part(self, column: bytes, begin: int, end: int) -> bytes:
        """Returns the values from number `begin` on and before `end`."""
        return column[begin * self._width : end * self._width]

    def batches(self, column: bytes, most: int) -> Iterator[bytes]:
        """Yields all values in parts of at most `most`."""
        return (column[at : at + most * self._width] for at in range(0, len(column), most * self._width))

    def zeros(self, count: int) -> bytes:
        """Returns a column of zeros."""
        return bytes(count * self._width)


PAGE_KEYS: Final = ColumnType(KEY_BYTES)
PAGE_SIZES: Final = ColumnType(8)
PAGE_SERIALS: Final = ColumnType(8)
PAGE_ENTRIES: Final = ColumnType(4)
PAGE_SLOTS: Final = ColumnType(4)
PAGE_REQUESTS: Final = RowType(PAGE_REQUEST_LAYOUT, PageRequest)
PAGE_ANSWERS: Final = RowType(PAGE_ANSWER_LAYOUT, PageAnswer)
PAGES_TO_FIND: Final = RowType(PAGE_TO_FIND_LAYOUT, PageToFind)
LOCATED_PAGES: Final = RowType(LOCATED_PAGE_LAYOUT, LocatedPage)
PAGES_TO_WRITE: Final = RowType(PAGE_TO_WRITE_LAYOUT, PageToWrite)
PAGES_TO_READ: Final = RowType(PAGE_TO_READ_LAYOUT, PageToRead)
STORED_PAGES: Final = RowType(STORED_PAGE_LAYOUT, StoredPage)
