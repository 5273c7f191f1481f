"""Delays stores briefly while the disk catches up, so that fewer pages leave memory unwritten."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable

import msgspec

from pagetier.shm._core import Owner


class _WaitingStore(msgspec.Struct, frozen=True, eq=False):
    """A store that waits for the disk, at most until its timer fires."""

    frames: int
    go: Callable[[], None]
    timer: asyncio.TimerHandle


class BackPressure:
    """Queue of stores that wait for the disk, in order of arrival. On the loop's thread only.

    Attributes:
        writing: Whether the disk is writing now. Stores do not wait for a disk that is not.
    """

    def __init__(self, owner: Owner, patience: float, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._patience = patience
        self._loop = loop
        self._frame_bytes = owner.header().frame_bytes
        self._waiting: deque[_WaitingStore] = deque()
        self.writing = False

    def wait_for_room(self, sizes: bytes, go: Callable[[], None]) -> None:
        """Calls `go` once: at once if no unwritten page has to leave for these pages, else a little later.

        Args:
            sizes: The sizes of the pages to store, u64 each.
            go: Continues the store. It is called after at most `disk.store_timeout` seconds, and at once if that is 0.
        """
        if not self._patience or not self.writing:
            go()
            return
        frames = sum(-(-size // self._frame_bytes) for size in array("Q", sizes))
        if not self._waiting and self._room(frames):
            go()
            return
        timer = self._loop.call_later(self._patience, self._release_first)
        self._waiting.append(_WaitingStore(frames, go, timer))

    def release_ready(self) -> None:
        """Releases the stores that have room now. Call it after pages were written."""
        while self._waiting and (not self.writing or self._room(self._waiting[0].frames)):
            self._release_first()

    def _room(self, frames: int) -> bool:
        return self._owner.frames_before_unwritten(frames) >= frames

    def _release_first(self) -> None:
        """Releases the store that has waited longest, which is the one whose timer fires first."""
        if self._waiting:
            first = self._waiting.popleft()
            first.timer.cancel()
            first.go()
