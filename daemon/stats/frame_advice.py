"""Relates frames to the pages in them: how many pages fit, and frames that are much too large for their pages."""

from __future__ import annotations

from typing import Final

from pagetier.shm._core import LEAST_FRAME_BYTES
from pagetier.shm.units import format_size, spell_size

_LEAST_PAGES: Final = 16  # of fewer pages the mean says little
_LEAST_FILL: Final = 0.75
_HOW: Final = "stop, then start with it and --fresh, which empties memory and the disk tier"


def pages_that_fit(frames: int, own: tuple[int, int], other: tuple[int, int]) -> int | None:
    """Returns for how many pages there is room in all of a tier; None while no tier has any: their size is not known.

    Args:
        frames: Frames for which the tier has room.
        own: Its frames in use, and the pages in them. Further pages count with as many frames.
        other: Those of another tier, whose pages count if this one has none.
    """
    used_frames, pages = next(filter(all, (own, other)), (0, 0))
    return max(own[1], frames * pages // used_frames) if pages else None


def compression_text(nbytes: int, stored_bytes: int) -> str:
    """Returns ", 1.38 x compressed" if pages take fewer bytes than they have, else ""."""
    return f", {nbytes / stored_bytes:.2f} x compressed" if nbytes > stored_bytes > 0 else ""


def stored_text(nbytes: int, stored_bytes: int) -> str:
    """Returns what so many bytes of pages take on disk, and the ratio: "96 MiB, 1.38 x"; or "-" if they take none."""
    return f"{format_size(stored_bytes)}, {nbytes / stored_bytes:.2f} x" if stored_bytes else "-"


def frame_advice(pages: int, nbytes: int, used: int) -> str:
    """Returns a warning with the frame size that fits, if more than a quarter of the frames is not filled; or "".

    Args:
        pages: Pages in memory.
        nbytes: Bytes of these pages.
        used: Bytes of their frames.
    """
    if pages < _LEAST_PAGES or not _wastes(nbytes, used):
        return ""
    mean = max(1, nbytes // pages)
    fits = 1 << (mean.bit_length() - 1)
    while fits > LEAST_FRAME_BYTES and _wastes(mean, _taken(mean, fits)):
        fits //= 2
    fits = max(LEAST_FRAME_BYTES, fits)
    if _taken(mean, fits) * pages >= used:
        return ""
    taken = f"{format_size(used)} of frames hold {format_size(nbytes)} of pages"
    return f'{taken}: arena.frame_size = "{spell_size(fits)}" fits better: {_HOW}'


def _wastes(nbytes: int, used: int) -> bool:
    """Returns whether pages of so many bytes fill less than three quarters of their frames."""
    return nbytes < _LEAST_FILL * used


def _taken(page_bytes: int, frame_bytes: int) -> int:
    """Returns the bytes of the frames of a page."""
    return -(-page_bytes // frame_bytes) * frame_bytes
