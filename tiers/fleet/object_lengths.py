"""The length of an object, which says the size of its page: a question to a store returns lengths only.

The object of a page that is not compressed has the bytes of the page and of the header. That of a compressed page has
an odd length, k units and 2 d + 1 bytes, and its page k + d units: k is the length, rounded up, and d what was saved.
A unit has 4 KiB, and more above 16 MiB. So lengths tell others nothing finer than that of the content of pages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from pagetier.tiers.fleet.objects import HEADER_BYTES

_UNIT: Final = 4096
_UNITS_BITS: Final = 24  # objects below 2^24 bytes have units of 4 KiB: d needs no more than 11 bits
_LEAST_SAVING: Final = 20  # a compressed object is shorter by one part of so many
_MOST_SAVING: Final = 2  # and at most by one part of its length of so many
_SPACES: Final = 1024


def most_bytes(size: int) -> int:
    """Returns the most bytes that a compressed page may have, for its object to save anything."""
    return size - size // _LEAST_SAVING - HEADER_BYTES


def compressed_length(size: int, nbytes: int) -> int:
    """Returns the length of the object of a compressed page.

    Args:
        size: The size of the page.
        nbytes: The bytes after the header.

    Returns:
        The length, 0 if there is none from which the size would follow: the page is not compressed then.
    """
    unit = _unit(HEADER_BYTES + nbytes)
    units, least = size // unit, (HEADER_BYTES + nbytes) // unit
    for whole in (least, least + 1):
        length = unit * whole + 2 * (units - whole) + 1
        if length >= HEADER_BYTES + nbytes and page_size(length) == size:
            return length
    return 0


def page_size(length: int) -> int:
    """Returns the size of the page whose object has this length; 0 if it cannot be a page's."""
    if length % 2:
        unit = _unit(length)
        whole, more = divmod(length, unit)
        saved = more // 2
        if _MOST_SAVING * saved <= whole <= (_LEAST_SAVING - 1) * saved:
            return unit * (whole + saved)
    return max(0, length - HEADER_BYTES)


def _unit(length: int) -> int:
    return _UNIT << (length >> _UNITS_BITS).bit_length()


class PageSizes:
    """Sizes of pages by the lengths of their objects. Thread-safe.

    Pages of an odd number of bytes, which no engine is known to have, may have objects with the length of a compressed
    page. A namespace with such pages is known after one of them was written or read here; its first read is a miss.
    """

    def __init__(self) -> None:
        self._uncompressed: set[bytes] = set()

    def note_uncompressed(self, space: bytes, size: int) -> None:
        """Takes note of the object of a page that is not compressed."""
        if page_size(HEADER_BYTES + size) != size:
            if len(self._uncompressed) >= _SPACES:
                self._uncompressed = set()
            self._uncompressed.add(space)

    def of(self, lengths: Sequence[int], spaces: Iterable[bytes]) -> array[int]:
        """Returns the sizes of the pages of some namespaces, as an array of type "Q"."""
        sizes = array("Q", [page_size(length) for length in lengths])
        if self._uncompressed:
            for at, (length, space) in enumerate(zip(lengths, spaces, strict=False)):
                if space in self._uncompressed:
                    sizes[at] = max(0, length - HEADER_BYTES)
        return sizes
