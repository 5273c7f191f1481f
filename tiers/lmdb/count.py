"""Checks whether an environment has as many frames as its headers name.

LMDB counts the frames, and the free room follows from that count. The count is in the file like everything else: a
single wrong bit in it, and nothing is stored any more, or more than fits.
"""

from __future__ import annotations

from itertools import islice

import lmdb
import msgspec

from pagetier.shm._core import frames_named
from pagetier.tiers.disk.environment import Listing, Record
from pagetier.tiers.disk.file_format import About
from pagetier.tiers.disk.reader import BATCH


class FrameCount:
    """Counts the frames named by all headers of an environment, as one or several transactions see them."""

    def __init__(self, frame_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        self._seen: set[tuple[int, int]] = set()
        self._named = 0
        self._clear = True

    def count(self, txn: Listing, frames: lmdb._Database) -> None:
        """Records LMDB's own count, in each transaction whose records are added."""
        self._seen.add((txn.id(), txn.stat(frames)["entries"]))

    def add(self, records: list[Record]) -> None:
        """Adds the frames that some headers name."""
        named = frames_named(records, self._frame_bytes)
        self._clear &= named is not None
        self._named += named or 0

    @property
    def wrong(self) -> str:
        """The difference, or "" if there is none.

        It is unknown, and "", after a concurrent change or with a damaged header.
        """
        if not self._clear or len(self._seen) != 1:
            return ""
        ((_, there),) = self._seen
        return f"it counts {there} frames, and its headers name {self._named}" if there != self._named else ""


def miscounted(data: str) -> str:
    """Returns what is wrong with the count in a file that is at rest and that LMDB accepts, or ""."""
    with (
        lmdb.open(data, subdir=False, readonly=True, lock=False, readahead=False, max_dbs=4) as env,
        env.begin() as txn,
    ):
        try:
            about, frames, pages = (env.open_db(name, txn, create=False) for name in (b"about", b"frames", b"pages"))
        except lmdb.NotFoundError:  # it was only just created
            return ""
        try:
            count = FrameCount(msgspec.msgpack.decode(txn.get(b"about", b"", db=about), type=About).frame_bytes)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return f"its own description cannot be read ({error})"
        count.count(txn, frames)
        records = txn.cursor(pages).iternext()
        while batch := list(islice(records, BATCH)):
            count.add(batch)
    return count.wrong
