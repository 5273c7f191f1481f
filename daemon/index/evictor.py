"""Evicts pages ahead of need, so that stores do not have to wait for it."""

from __future__ import annotations

import asyncio
import logging

from pagetier.daemon.config.schema import EvictOptions
from pagetier.shm._core import Owner
from pagetier.shm.failpoints import point

log = logging.getLogger(__name__)

_BATCH = 256  # pages evicted before other requests get their turn: a fraction of a millisecond


class Evictor:
    """Evicts from `low` free frames up to `high`, in batches between requests. On the loop's thread only."""

    def __init__(self, owner: Owner, marks: EvictOptions, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._running = False
        self._mark(marks)

    def _mark(self, marks: EvictOptions) -> None:
        self._use(marks.policy)
        frames = self._owner.header().frames
        self._low = int(frames * marks.low)
        self._high = int(frames * marks.high)

    def _use(self, policy: str) -> None:
        if policy == "lru":
            self._owner.forget_returns()
            return
        try:
            self._owner.learn_returns()
        except MemoryError:
            log.warning("memory is too short for evict.policy = cadence: the least recently used page is evicted")

    def follow(self, marks: EvictOptions) -> None:
        """Applies other shares and another policy from now on."""
        self._mark(marks)
        self.maybe_evict()

    def maybe_evict(self) -> None:
        """Starts to evict if it is due. Cheap, for a call after every reservation."""
        if self._low and not self._running and self._owner.free_frames < self._low:
            self._running = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        evicted = self._owner.evict(self._high, _BATCH)
        point("evictor.evicted")
        self._running = evicted == _BATCH and self._owner.free_frames < self._high
        if self._running:
            self._loop.call_soon(self._step)
