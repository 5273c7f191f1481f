"""Delays stores briefly while the disk catches up, so that fewer pages leave memory unwritten.

A store waits before it is granted anything, so a waiting store has no frames and the disk's progress frees some. It is
served after a short time in any case: back-pressure saves pages on their way to disk, but never rejects a store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from pagetier.shm._core import Owner


class _WaitingStore(msgspec.Struct, frozen=True, eq=False):
    """A store that waits for the disk, at most until its timer fires."""

    frames: int
    tenant: int
    serve: Callable[[], None]
    timer: asyncio.TimerHandle


class DiskWriter(Protocol):
    """The writer for which stores wait. See WriteBehind."""

    @property
    def writing(self) -> bool:
        """Whether pages are being written. Stores do not wait for a disk that is not writing."""


class BackPressure:
    """Queue of stores that wait for the disk, in order of arrival. On the loop's thread only."""

    def __init__(self, owner: Owner, writer: DiskWriter, patience: float, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._writer = writer
        self._patience = patience
        self._loop = loop
        self._waiting: deque[_WaitingStore] = deque()

    @property
    def idle(self) -> bool:
        """Whether no store waits for the disk now."""
        return not self._patience or not self._writer.writing

    def serve_when_disk_has_room(self, frames: int, serve: Callable[[], None], tenant: int = 0) -> None:
        """Calls `serve` once: at once if no unwritten page has to leave for these pages, else a little later.

        Args:
            frames: The frames of the pages to store.
            serve: Serves the store, after at most `disk.store_timeout` seconds, and at once if that is 0.
            tenant: The tenant whose quota the pages count for; 0: none.
        """
        if self.idle:
            serve()
            return
        if not self._waiting and self._room(frames, tenant):
            serve()
            return
        timer = self._loop.call_later(self._patience, self._serve_first)
        self._waiting.append(_WaitingStore(frames, tenant, serve, timer))

    def serve_ready(self) -> None:
        """Serves the stores that have room now. Call it after pages were written."""
        writing = self._writer.writing
        while self._waiting and (not writing or self._room(self._waiting[0].frames, self._waiting[0].tenant)):
            self._serve_first()

    def _room(self, frames: int, tenant: int) -> bool:
        return self._owner.frames_before_unwritten(frames, tenant) >= frames

    def _serve_first(self) -> None:
        """Serves the store that has waited longest, which is the one whose timer fires first."""
        if self._waiting:
            first = self._waiting.popleft()
            first.timer.cancel()
            first.serve()
