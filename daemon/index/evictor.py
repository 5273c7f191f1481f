"""Evicts pages ahead of need, so that stores do not have to wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.daemon.config.schema import EvictOptions
from pagetier.daemon.status.eviction_report import EvictionReport, EvictionState
from pagetier.shm._core import Owner
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)

_BATCH = 256  # pages evicted before other requests are handled: a fraction of a millisecond
_LOGGED = (EvictionState.CHOOSING, EvictionState.FOLLOWING_LRU)


class Evictor:
    """Evicts up to the share `evict.free` of free frames, from half as many, in batches between requests.

    On the loop's thread only.
    """

    def __init__(
        self,
        owner: Owner,
        marks: EvictOptions,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._owner = owner
        self._loop = loop
        self._running = False
        self._throttle = LogThrottle(log, most=2)
        self._logged = EvictionState.LRU
        self._mark(marks)

    def _mark(self, marks: EvictOptions) -> None:
        self._policy = marks.policy
        self._use(marks.policy)
        frames = self._owner.header().frames
        self._low = int(frames * marks.free / 2)
        self._high = int(frames * marks.free)

    def _use(self, policy: str) -> None:
        if policy == "lru":
            self._owner.forget_returns()
            return
        try:
            self._owner.learn_returns()
        except MemoryError:
            _log(logging.WARNING, self.report())

    def follow(self, marks: EvictOptions) -> None:
        """Applies other shares and another policy from now on."""
        self._mark(marks)
        self.maybe_evict()

    def report(self) -> EvictionReport:
        """Returns which order of eviction is in force."""
        now = self._owner.eviction()
        state = EvictionState.CHOOSING
        if not now.learns:
            state = EvictionState.LRU if self._policy == "lru" else EvictionState.NO_MEMORY
        elif not now.learned:
            state = EvictionState.LEARNING
        elif now.follows_lru:
            state = EvictionState.FOLLOWING_LRU
        return EvictionReport(policy=self._policy, state=state, left_out=now.left_out, switches=now.switches)

    def notes(self) -> Mapping[str, str]:
        """Returns why evict.policy has no effect, by its name; nothing if it has."""
        short = self.report().state is EvictionState.NO_MEMORY
        return {"evict.policy": "lru runs, because memory is too short to learn"} if short else {}

    def poll(self) -> EvictionReport:
        """Returns the order of eviction, and logs a change at most twice a minute. For a call a few times a second."""
        report = self.report()
        if report.state is not self._logged and report.state in _LOGGED and self._throttle.count_line():
            self._logged = report.state
            _log(logging.INFO, report)
        return report

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


def _log(level: int, report: EvictionReport) -> None:
    log.log(level, "%s", report.sentence, extra=event("eviction_policy", state=report.state.value))
