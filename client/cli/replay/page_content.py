"""What replayed pages hold: words that follow from the page's key and their place in it, and no two alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WORD_BYTES = 8
_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd: no two places of a page are given the same


class Pattern:
    """Makes and checks pages of one size. One for each thread: it keeps its memory from one prompt to the next.

    page_bytes: a multiple of 8, more than 0.
    """

    def __init__(self, page_bytes: int) -> None:
        self._steps = np.arange(page_bytes // WORD_BYTES, dtype=np.uint64) * _STEP
        self._made = self._room(0)
        self._space = self._room(0)

    def of(self, keys: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
        """The pages of these keys (32 bytes a row), a row each, until the next call."""
        if len(keys) > len(self._made):
            self._made = self._room(len(keys))
        seeds = keys[:, :WORD_BYTES].copy().view(np.uint64)
        made = self._made[: len(keys)]
        np.add(seeds, self._steps, out=made)
        return made

    def space(self, pages: int) -> npt.NDArray[np.uint64]:
        """Memory to load pages into, all zero, until the next call: what was not loaded is no page."""
        if pages > len(self._space):
            self._space = self._room(pages)
        self._space[:pages] = 0
        return self._space[:pages]

    def _room(self, pages: int) -> npt.NDArray[np.uint64]:
        return np.empty((pages, len(self._steps)), dtype=np.uint64)


def wrong_pages(loaded: npt.NDArray[np.uint64], made: npt.NDArray[np.uint64]) -> int:
    """How many pages (rows) are not byte for byte what they should be."""
    if np.array_equal(loaded, made):
        return 0
    return int((loaded != made).any(axis=1).sum())
