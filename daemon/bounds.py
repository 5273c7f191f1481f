"""What one process may take of the arena at once, so that one that stands still leaves room for the others."""

from __future__ import annotations

from array import array
from typing import Final

from ..shm._core import Owner

_LEAST_FRAMES: Final = 1024  # a smaller arena is one engine's, or a test's


def share_of(header: dict[str, int], share: float) -> int:
    """Frames of a share of the arena, as a bound on what one may have; 0: there is none."""
    return int(header["frames"] * share) if header["frames"] >= _LEAST_FRAMES else 0


class Bounds:
    """Frames that a process may have reserved and not let go of: a share of the arena; 0: any. On the loop's thread."""

    def __init__(self, owner: Owner, share: float) -> None:
        header = owner.header()
        self._owner = owner
        self._frame_bytes = header["frame_bytes"]
        self._most = share_of(header, share)

    def pages(self, slot: int, sizes: bytes) -> int:
        """How many pages of a chain, head first, the process may reserve now. sizes: u64 each."""
        each = array("Q", sizes)
        if not self._most or (not self._owner.open_entries and self._fits(each, self._most)):
            return len(each)
        room = self._most - self._owner.frames_writing(slot)
        if self._fits(each, room):
            return len(each)
        self._owner.settle()  # what was finished meanwhile is not being written any more
        return self._count(each, self._most - self._owner.frames_writing(slot))

    def _fits(self, each: array[int], room: int) -> bool:
        """Seen at a glance: at most one frame of each page is half empty."""
        return sum(each) // self._frame_bytes + len(each) <= room

    def _count(self, each: array[int], room: int) -> int:
        for page, size in enumerate(each):
            room -= -(-size // self._frame_bytes)
            if room < 0:
                return page
        return len(each)
