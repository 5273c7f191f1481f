"""Which share of a page a writer fills."""

from __future__ import annotations

from typing import Final

import msgspec

from pagetier.shm._core import PARTS


class Part(msgspec.Struct, frozen=True):
    """Which share of every page this writer fills: part `index` of `count`, up to 32.

    A page is readable once all parts of it were stored. Parts of buffers are equal pieces of a page.

    division: a u32 that stands for how pages are cut into parts. Parts of two divisions never make one page.
    """

    index: int = 0
    count: int = 1
    division: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.count <= PARTS or not 0 <= self.index < self.count:
            raise ValueError(f"part {self.index} of {self.count}: 1 to {PARTS} parts, counted from 0")


WHOLE: Final = Part()
