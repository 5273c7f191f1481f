"""The arena in the worker: pages as lists of frames."""

from __future__ import annotations

import contextlib
import mmap
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from pagetier.shm import clock
from pagetier.shm._core import Pins, Session
from pagetier.shm.page_rows import PageToWrite

_MADV_POPULATE_READ: Final = 22
_AT_ONCE: Final = 4 << 20
_PAUSE_S: Final = 0.0002  # lets other threads run


class WorkerArena:
    """This process's session with the segments. Thread-safe. Takes ownership of the descriptors."""

    def __init__(self, descriptors: tuple[int, int, int], slot: int) -> None:
        index, locks, arena = descriptors
        self._session = Session(index, locks, arena, slot)
        self._mapping = mmap.mmap(arena, 0)
        self._arena = memoryview(self._mapping)
        for descriptor in descriptors:
            os.close(descriptor)
        self.frame_bytes = self._session.frame_bytes

    def populate(self) -> None:
        """Maps the whole arena before its use: a page fault for every 64 KiB costs a tenth of the writing."""
        with contextlib.suppress(OSError, ValueError):  # an unsupported kernel maps it on use
            for at in range(0, len(self._mapping), _AT_ONCE):
                self._mapping.madvise(_MADV_POPULATE_READ, at, min(_AT_ONCE, len(self._mapping) - at))
                clock.sleep(_PAUSE_S)

    def frames(self, entry: int) -> list[memoryview]:
        """Returns the frames of a page that is pinned or was granted; none if the index is inconsistent."""
        size = self.frame_bytes
        return [self._arena[frame * size : (frame + 1) * size] for frame in array("I", self._session.frames(entry))]

    @contextmanager
    def pinned(self, pages: Sequence[PageToWrite]) -> Iterator[list[bool]]:
        """Pins the pages that are unchanged, and yields which ones are."""
        entries, serials = array("I", [page.entry for page in pages]), array("Q", [page.serial for page in pages])
        unchanged = list[bool]()
        with ExitStack() as pins:
            while (first := len(unchanged)) < len(pages):
                # repin() stops at the first page that is gone, and the next call continues after that page.
                run = self._session.repin(Pins, None, entries[first:], serials[first:])
                if len(run):
                    pins.enter_context(run)
                unchanged += [True] * len(run) + [False]
            yield unchanged[: len(pages)]

    def publish(self, entry: int, serial: int) -> bool:
        """Publishes a page that was read; returns False if it was given up before."""
        return self._session.publish(_u32(entry), _u64(serial), 0) == b"\x01"

    def abandon(self, entry: int, serial: int) -> None:
        """Gives up a page that could not be read."""
        self._session.abandon(_u32(entry), _u64(serial), 0)


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _u64(value: int) -> bytes:
    return value.to_bytes(8, "little")
