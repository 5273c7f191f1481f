"""Damages the bytes of index and lock words, by area and kind of damage."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Final

import msgspec

from pagetier.shm._core import HISTORY_LAYOUT

Image = dict[str, bytearray]
"""The bytes of the segments, by kind: "index", "locks", "arena"."""

PAGE: Final = 4096
LINE: Final = 64
_AT_SLOTS: Final = struct.Struct("<8Q")  # at_slots to at_learned
_AT_SLOTS_OFFSET: Final = 112
_HEADER_BYTES: Final = 1024  # the part of the header's page that is in use


class Area(msgspec.Struct, frozen=True):
    """The bytes [begin, end) of a segment, made of records of `record` bytes."""

    name: str
    kind: str
    begin: int
    end: int
    record: int


def areas_of(image: Image) -> tuple[Area, ...]:
    """Returns all areas of index and lock words.

    The bytes of pages are not included: in memory they have no checksum.
    """
    index, locks = image["index"], image["locks"]
    slots, spaces, one, other, entries, frames, histories, learned = _AT_SLOTS.unpack_from(index, _AT_SLOTS_OFFSET)
    return (
        Area("header", "index", 0, _HEADER_BYTES, 8),
        Area("status", "index", PAGE, 2 * PAGE, 64),
        Area("slots", "index", slots, spaces, 64),
        Area("namespaces", "index", spaces, one, 192),
        Area("dictionary", "index", one, other, 64),
        Area("other dictionary", "index", other, entries, 64),
        Area("entries", "index", entries, frames, 128),
        Area("frames", "index", frames, histories, 8),
        Area("histories", "index", histories, learned, HISTORY_LAYOUT.size),
        Area("what was learned", "index", learned, len(index), 8),
        Area("header of locks", "locks", 0, PAGE, 64),
        Area("counters", "locks", PAGE, 2 * PAGE, 64),
        Area("lock words", "locks", 2 * PAGE, len(locks), 32),
    )


class Injury(msgspec.Struct, frozen=True):
    """A damage: its area, its kind, and its place in the segment."""

    area: str
    how: str
    at: int


def injure(image: Image, older: Image, chance: random.Random) -> Injury:
    """Damages the image in one place. `older` is an earlier version of the same segments."""
    area = chance.choice(areas_of(older))
    how = chance.choice([*_CONTENTS, "swapped", "elsewhere"])
    at = chance.randrange(area.begin, area.end)
    now = image[area.kind]
    if how == "swapped":
        _swap(now, area, _block(area, at, chance), chance)
    elif how == "elsewhere":
        _copy_elsewhere(now, area, chance)
    else:
        place, content = _CONTENTS[how]
        where = place(area, at, chance)
        now[where] = content(now[where], older[area.kind][where], chance)
    return Injury(area.name, how, at)


def _byte(area: Area, at: int, chance: random.Random) -> slice:
    return slice(at, at + 1)


def _word(area: Area, at: int, chance: random.Random) -> slice:
    at = min(at - at % 4, area.end - 4)
    return slice(at, at + 4)


def _block(area: Area, at: int, chance: random.Random) -> slice:
    """Returns a record, a cache line or a page of the area."""
    size = min(chance.choice([area.record, LINE, PAGE]), area.end - area.begin)
    begin = max(area.begin, min(at - at % size, area.end - size))
    return slice(begin, begin + size)


def _number(chance: random.Random) -> bytes:
    numbers = [0, 1, 2, 55, 56, 255, 0xFFFFFFFF, 0xFFFFFFFE, 0x7FFFFFFF, chance.getrandbits(32)]
    return struct.pack("<I", chance.choice(numbers))


def _swap(now: bytearray, area: Area, one: slice, chance: random.Random) -> None:
    size = one.stop - one.start
    begin = area.begin + chance.randrange((area.end - area.begin) // size) * size
    other = slice(begin, begin + size)
    now[one], now[other] = now[other], now[one]


def _copy_elsewhere(now: bytearray, area: Area, chance: random.Random) -> None:
    """Copies a part of a record to another one: a key, a link or a word."""
    records, size = (area.end - area.begin) // area.record, min(area.record, chance.choice([4, 8, 32]))
    inside = chance.randrange(0, max(1, area.record - size + 1), 4)
    one, other = (area.begin + chance.randrange(records) * area.record + inside for _ in range(2))
    now[one : one + size] = now[other : other + size]


_Place = Callable[[Area, int, random.Random], slice]
_Content = Callable[[bytearray, bytearray, random.Random], bytes | bytearray]
_CONTENTS: Final[dict[str, tuple[_Place, _Content]]] = {
    "bit": (_byte, lambda now, older, chance: bytes([now[0] ^ 1 << chance.randrange(8)])),
    "byte": (_byte, lambda now, older, chance: chance.randbytes(1)),
    "number": (_word, lambda now, older, chance: _number(chance)),
    "zeroed": (_block, lambda now, older, chance: bytes(len(now))),
    "ones": (_block, lambda now, older, chance: b"\xff" * len(now)),
    "older": (_block, lambda now, older, chance: older),
}
