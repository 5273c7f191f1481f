"""Measures how much engines store, so that writing ahead keeps up with them in an arena of any size."""

from __future__ import annotations

import math
from typing import Final

from pagetier.daemon.common import loop_clock

_MEMORY_S: Final = 10.0  # long enough for a prompt to be published and for the disk to write as much

_NOTHING: Final = 0.5  # frames


class StoreRate:
    """The frames that were granted to engines in the last seconds. Older ones count less, as e**(-seconds / 10).

    A prompt counts in full at once: as much may be stored again before the disk has written a page.
    """

    def __init__(self, frame_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        self._level = 0.0
        self._at = loop_clock.now()

    def add(self, granted: int, nbytes: int) -> None:
        """Records that so many pages, with so many bytes, were granted."""
        if granted:
            now, frames = loop_clock.now(), math.ceil(nbytes / self._frame_bytes)
            self._level, self._at = self._level_at(now) + max(granted, frames), now

    @property
    def frames(self) -> int:
        """The number of frames."""
        level = self._level_at(loop_clock.now())
        return math.ceil(level) if level >= _NOTHING else 0

    def _level_at(self, now: float) -> float:
        return self._level * math.exp((self._at - now) / _MEMORY_S)
