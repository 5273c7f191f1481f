"""What one process may take of the arena at once, so that one that stands still leaves room for the others."""

from __future__ import annotations

import struct
from array import array
from typing import Any, Final, TypeAlias

from pagetier.shm._core import SLOTS, Owner
from pagetier.shm.process import Process

_Process: TypeAlias = tuple[int, int]  # pid and start time
_SIZE: Final = struct.Struct("<Q")
_RESERVED: Final = "this process has reserved as much of the arena as one may without having written it: store.share"
_LEAST_FRAMES: Final = 1024  # a smaller arena is one engine's, or a test's


def share_of(header: dict[str, int], share: float) -> int:
    """Frames of a share of the arena, as a bound on what one may have; 0: there is none."""
    return int(header["frames"] * share) if header["frames"] >= _LEAST_FRAMES else 0


class Bounds:
    """Frames that a process may have reserved and not let go of: a share of the arena; 0: any. On the loop's thread.

    What all attachments of a process have counts together. To know it takes a walk over all that is open: 20 ms where
    that is a million pages. So what it had at the last walk, and was let have since, is remembered; what would be too
    much together is looked at again.
    """

    def __init__(self, owner: Owner, share: float) -> None:
        header = owner.header()
        self._owner = owner
        self._frame_bytes = header["frame_bytes"]
        self._frames = header["frames"]
        self._most = share_of(header, share)
        self._had: dict[_Process, int] = {}
        self._at_its_bound: set[_Process] = set()

    def pages(self, slot: int, sizes: bytes) -> int:
        """How many pages of a chain, head first, the process may reserve now. sizes: u64 each."""
        each = array("Q", sizes)
        if not self._most:
            return len(each)
        if not self._owner.open_entries or len(self._had) > SLOTS:
            self._had.clear()  # of processes that are gone, too
        process = self._owner.process_of(slot)
        pages = self._pages(slot, process, each)
        self._had[process] = self._had.get(process, 0) + self._glance(each[:pages])
        return pages

    def why_refused(self, sizes: bytes, page: int) -> str:
        """Returns why there is no room for a page of a chain: for now, or for good where it alone is too large."""
        (size,) = _SIZE.unpack_from(sizes, page * _SIZE.size)
        if not size:
            return "a page of 0 bytes cannot be stored"
        frames = -(-size // self._frame_bytes)
        if frames > self._frames:
            return self._never(size, f"the arena has {self._frames * self._frame_bytes}: set a larger arena.size")
        if 0 < self._most < frames:
            most = f"{self._most * self._frame_bytes} of the arena"
            return self._never(size, f"store.share allows {most} to a process: set a larger store.share or arena.size")
        return _RESERVED

    @staticmethod
    def _never(size: int, limit: str) -> str:
        return f"a page of {size} bytes never fits, and waiting does not help: {limit}"

    def renew(self) -> None:
        """Who was at its bound may have finished something since: a few times a second."""
        self._at_its_bound.clear()

    def _pages(self, slot: int, process: _Process, each: array[int]) -> int:
        if self._glance(each) + self._had.get(process, self._most) <= self._most:
            return len(each)
        if process in self._at_its_bound:
            return 0
        pages = self._count(each, self._room(slot, process))
        if pages < len(each):
            self._owner.settle()  # what was finished meanwhile is not being written any more
            pages = self._count(each, self._room(slot, process))
        if not pages:
            self._at_its_bound.add(process)
        return pages

    def _room(self, slot: int, process: _Process) -> int:
        self._had[process] = self._owner.frames_writing(slot) if self._owner.open_entries else 0
        return self._most - self._had[process]

    def _glance(self, each: array[int]) -> int:
        """The most frames that they can be: at most one frame of each page is half empty."""
        return sum(each) // self._frame_bytes + len(each)

    def _count(self, each: array[int], room: int) -> int:
        for page, size in enumerate(each):
            room -= -(-size // self._frame_bytes)
            if room < 0:
                return page
        return len(each)


MOST_OF_PROCESS: Final = SLOTS // 4


def has_slot(takers: list[dict[str, Any]], process: Process, token: int) -> bool:
    """Whether a session of this process is among the takers."""
    return token in _tokens(takers, process)


def why_no_slot(takers: list[dict[str, Any]], process: Process, token: int, kept: int) -> str:
    """Why a session of this process may not have a slot, or "": it may, or has one already.

    takers: who has one. kept: slots that no engine may have.
    """
    if has_slot(takers, process, token):
        return ""
    if len(_tokens(takers, process)) >= MOST_OF_PROCESS:
        return f"this process has {MOST_OF_PROCESS} slots: one of its sessions has to go first"
    if len(takers) + kept >= SLOTS:
        for_disk = " or kept for the disk tier" if kept else ""
        return f"all {SLOTS} slots are taken{for_disk}: an engine has to go first"
    return ""


def _tokens(takers: list[dict[str, Any]], process: Process) -> list[int]:
    return [t["token"] for t in takers if Process(t["pid"], t["started"]) == process]
