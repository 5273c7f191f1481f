"""Packs pages into objects, compressed while that is faster than the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeVar

from pagetier.shm import clock
from pagetier.tiers.base import PageName
from pagetier.tiers.busy_rate import BusyRate
from pagetier.tiers.fleet.object_lengths import PageSizes
from pagetier.tiers.fleet.objects import HEADER_BYTES
from pagetier.tiers.fleet.page_codecs import PageCodec

_T = TypeVar("_T")
_TRIED: Final = 64  # of so many pages one is compressed in any case, to measure how fast that is


class PagePacker:
    """Packs pages by one codec. Thread-safe.

    Pages are compressed while the store takes fewer bytes a second than one thread compresses: the next page is
    compressed while the store takes the one before. Before both were measured, pages are compressed.

    Args:
        codec: How pages are protected.
        compress: Whether pages may be compressed at all.

    Attributes:
        sizes: The sizes of pages by the lengths of objects.
    """

    def __init__(self, codec: PageCodec, compress: Literal["auto", "off"]) -> None:
        self.codec = codec
        self.sizes = PageSizes()
        self._compress = compress
        self._lock = threading.Lock()
        self._store, self._coding = BusyRate(), BusyRate()
        self._packed = 0

    @property
    def is_worthwhile(self) -> bool:
        """Whether the store is slower than the compression, as far as both are known."""
        store, coding = self._store.rate, self._coding.rate
        return not store or not coding or store < coding

    def pack(self, page: PageName, size: int, frames: Sequence[memoryview], out: memoryview) -> int:
        """Writes the object of a page to `out`, which has room for one that is not compressed; returns its length."""
        if self._takes_next() and (length := self._compressed(page, size, frames, out)):
            return length
        self.codec.pack(page, size, frames, out)
        self.sizes.note_uncompressed(page.space, size)
        return HEADER_BYTES + size

    def put(self, function: Callable[[], _T], nbytes: int) -> _T:
        """Returns the result of a put of so many bytes, and measures it."""
        with self._lock:
            self._store.began(1, clock.now())
        stored = 0
        try:
            result = function()
            stored = nbytes if result else 0
        finally:
            with self._lock:
                self._store.ended(1, stored, clock.now())
        return result

    def _takes_next(self) -> bool:
        if self._compress == "off":
            return False
        with self._lock:
            self._packed += 1
            return self.is_worthwhile or self._packed % _TRIED == 0

    def _compressed(self, page: PageName, size: int, frames: Sequence[memoryview], out: memoryview) -> int:
        """Returns the length of the object of a compressed page, 0 if the page saves too little.

        Threads share a rate: it is that of one of them where each has a core, and less where they do not.
        """
        began = clock.now()
        length = self.codec.pack_compressed(page, size, frames, out)
        with self._lock:
            self._coding.began(1, began)
            self._coding.ended(1, size, clock.now())
        return length
