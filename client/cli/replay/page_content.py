"""Generates the content of replayed pages: words that depend on the page's key and their position in the page."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WORD_BYTES = 8
_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd, so that all positions of a page have different words


class Pattern:
    """Generates and verifies pages of one size. Not thread-safe: it reuses its memory from prompt to prompt.

    Args:
        page_bytes: The size of a page, a positive multiple of 8.
    """

    def __init__(self, page_bytes: int) -> None:
        self._steps = np.arange(page_bytes // WORD_BYTES, dtype=np.uint64) * _STEP
        self._made = self._room(0)
        self._space = self._room(0)

    def of(self, keys: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
        """Returns the pages of these keys (32 bytes a row), a row each. They are valid until the next call."""
        if len(keys) > len(self._made):
            self._made = self._room(len(keys))
        seeds = keys[:, :WORD_BYTES].copy().view(np.uint64)
        made = self._made[: len(keys)]
        np.add(seeds, self._steps, out=made)
        return made

    def space(self, pages: int) -> npt.NDArray[np.uint64]:
        """Returns memory for loaded pages, valid until the next call.

        It is zeroed, so that unloaded pages are detected.
        """
        if pages > len(self._space):
            self._space = self._room(pages)
        self._space[:pages] = 0
        return self._space[:pages]

    def _room(self, pages: int) -> npt.NDArray[np.uint64]:
        return np.empty((pages, len(self._steps)), dtype=np.uint64)


def wrong_pages(loaded: npt.NDArray[np.uint64], made: npt.NDArray[np.uint64]) -> int:
    """Returns the number of pages (rows) that differ from their expected content."""
    if np.array_equal(loaded, made):
        return 0
    return int((loaded != made).any(axis=1).sum())
