"""Finds frames that are much larger than the pages in them, which leaves most of the arena unused."""

from __future__ import annotations

from typing import Final

from pagetier.shm._core import LEAST_FRAME_BYTES
from pagetier.shm.units import format_size, spell_size

_LEAST_PAGES: Final = 16  # of fewer pages the mean says little
_WASTE: Final = 2


def frame_advice(pages: int, nbytes: int, used: int) -> str:
    """Returns a warning with the frame size that fits, if the frames take over twice the bytes of their pages; or "".

    Args:
        pages: Pages in memory.
        nbytes: Bytes of these pages.
        used: Bytes of their frames.
    """
    if pages < _LEAST_PAGES or used <= _WASTE * nbytes:
        return ""
    mean = max(1, nbytes // pages)
    fits = max(LEAST_FRAME_BYTES, 1 << (mean.bit_length() - 1))
    if fits * pages >= used:
        return ""
    taken = f"{format_size(used)} of frames hold {format_size(nbytes)} of pages"
    return f'{taken}: arena.frame_size = "{spell_size(fits)}" fits better'
