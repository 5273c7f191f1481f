"""Checks whether an environment has as many frames as its headers name.

LMDB counts the frames, and the free room follows from that count. The count is in the file like everything else: a
single wrong bit in it, and nothing is stored any more, or more than fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

import lmdb
import msgspec
import numpy as np

from pagetier.tiers.disk.environment import Listing
from pagetier.tiers.disk.file_format import EXTENT_BYTES, FORMAT, HEADER_BYTES, OLD_HEADER_BYTES, About
from pagetier.tiers.disk.reader import BATCH

_FIXED_WORDS: Final = HEADER_BYTES // EXTENT_BYTES
_OLD_FIXED_WORDS: Final = OLD_HEADER_BYTES // EXTENT_BYTES
_SIZE_WORD: Final = 1  # after format, codec and space
_FORMAT_BYTE: Final = np.uint64(0xFF)


class FrameCount:
    """Counts the frames named by all headers of an environment, as one or several transactions see them."""

    def __init__(self, frame_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        self._seen: set[tuple[int, int]] = set()
        self._named = 0
        self._clear = True

    def count(self, txn: Listing, frames: lmdb._Database) -> None:
        """Records LMDB's own count, in each transaction whose headers are added."""
        self._seen.add((txn.id(), txn.stat(frames)["entries"]))

    def add(self, headers: Sequence[bytes]) -> None:
        """Adds the frames of some headers."""
        named = _named(headers, self._frame_bytes)
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


def _named(headers: Sequence[bytes], frame_bytes: int) -> int | None:
    """Returns how many frames the headers name; None if the extents and the size of one of them disagree."""
    lengths = np.fromiter(map(len, headers), np.int64, len(headers))
    if (lengths < OLD_HEADER_BYTES).any() or (lengths % EXTENT_BYTES).any():
        return None
    packed = b"".join(headers)
    starts = np.cumsum(lengths // EXTENT_BYTES) - lengths // EXTENT_BYTES
    words = np.frombuffer(packed, "<u8")
    new = words[starts] & _FORMAT_BYTE == FORMAT
    if (lengths[new] < HEADER_BYTES).any():
        return None
    sizes = words[starts + _SIZE_WORD]
    frames = np.frombuffer(packed, "<u4")[1::2].astype(np.uint64)
    for word in range(_FIXED_WORDS):
        frames[(starts if word < _OLD_FIXED_WORDS else starts[new]) + word] = 0
    named = np.add.reduceat(frames, starts)
    agree = named == sizes // np.uint64(frame_bytes) + (sizes % np.uint64(frame_bytes) > 0)
    return int(named.sum()) if agree.all() else None


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
        headers = txn.cursor(pages).iternext(keys=False)
        while batch := list(islice(headers, BATCH)):
            count.add(batch)
    return count.wrong
