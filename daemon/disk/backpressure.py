"""Stores wait a moment for a disk that is behind, rather than have pages leave memory unwritten."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable

import msgspec

from pagetier.shm._core import Owner


class _WaitingStore(msgspec.Struct, frozen=True, eq=False):
    """A store that waits, at most until its timer."""

    frames: int
    go: Callable[[], None]
    timer: asyncio.TimerHandle


class BackPressure:
    """Stores in the order in which they came. On the loop's thread only. patience: seconds; 0: nobody waits."""

    def __init__(self, owner: Owner, patience: float, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._patience = patience
        self._loop = loop
        self._frame_bytes = owner.header()["frame_bytes"]
        self._waiting: deque[_WaitingStore] = deque()
        self.writing = False

    def admit(self, sizes: bytes, go: Callable[[], None]) -> None:
        """Calls go once: at once if no unwritten page has to leave for pages of these sizes (u64), else a little later.

        writing: whether the disk is at work; nobody waits for one that is not.
        """
        if not self._patience or not self.writing:
            go()
            return
        frames = sum(-(-size // self._frame_bytes) for size in array("Q", sizes))
        if not self._waiting and self._room(frames):
            go()
            return
        timer = self._loop.call_later(self._patience, self._let_first_go)
        self._waiting.append(_WaitingStore(frames, go, timer))

    def look(self) -> None:
        """After pages were written: whoever has room now goes on."""
        while self._waiting and (not self.writing or self._room(self._waiting[0].frames)):
            self._let_first_go()

    def _room(self, frames: int) -> bool:
        return self._owner.frames_ahead(frames) >= frames

    def _let_first_go(self) -> None:
        """The first has waited longest, so the timer that fires is his."""
        if self._waiting:
            first = self._waiting.popleft()
            first.timer.cancel()
            first.go()
