"""Deaths, told by the kernel: a pidfd for each attached process, and its slot given back when it fires."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter

from pagetier.daemon.common.descriptor_limit import reason_with_limit
from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.shm._core import Owner, ShmError
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.process import Process

log = logging.getLogger(__name__)


class Reaper:
    """Watches the process of each slot and takes back what it held once it is gone. On the loop's thread only.

    A process's socket may close long before its GPU work ends, so the socket says nothing here. Nobody promises that
    the GPU has ended when the process has, either: so there are `quarantine` seconds between the two.

    deaths: attached processes that ended without saying goodbye, since this daemon began.
    """

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop, quarantine: float) -> None:
        self._quarantine = quarantine
        self._dead: dict[int, asyncio.TimerHandle] = {}
        self._owner = owner
        self._loop = loop
        self._watched: dict[int, int] = {}
        self._ends: Counter[int] = Counter()
        self._told = LogThrottle(log)
        self.deaths = 0

    def watch(self, slot: int, pidfd: int) -> None:
        """Takes over the pidfd. A slot that is watched already keeps its own, one of the dead its end.

        A process may ask for its slot, and die, while no daemon reads: the next one hears of its death first.
        """
        if slot in self._watched or slot in self._dead:
            os.close(pidfd)
            return
        self._watched[slot] = pidfd
        self._loop.add_reader(pidfd, self._died, slot)

    def watch_adopted(self) -> None:
        """Watches the processes that an earlier daemon's segments name.

        Raises ShmError if it cannot look whether one lives: nothing of a living process may be reclaimed.
        """
        for taker in self._owner.takers():
            try:
                self.watch(taker["slot"], Process(taker["pid"], taker["started"]).watch())
            except ProcessLookupError:
                self._reap_later(taker["slot"])
            except OSError as error:
                raise ShmError(f"cannot watch process {taker['pid']}{reason_with_limit(error)}") from error

    def release(self, slot: int) -> None:
        """Frees the slot of a process that has let go of everything, at once, if it is not dead already."""
        if slot not in self._dead:
            self._forget(slot)
            self._owner.detach(slot)
            self._ends[slot] += 1

    def ends(self, slot: int) -> int:
        """How many who had this slot are gone: what is done later for one of them is done only if none went since."""
        return self._ends[slot]

    def close(self) -> None:
        """Stops watching; the slots stay as they are."""
        for slot in list(self._watched):
            self._forget(slot)
        for timer in self._dead.values():
            timer.cancel()

    def _died(self, slot: int) -> None:
        self._forget(slot)
        point("reaper.noticed")
        self._reap_later(slot)

    def _reap_later(self, slot: int) -> None:
        self._dead[slot] = self._loop.call_later(self._quarantine, self._reap, slot)

    def _reap(self, slot: int) -> None:
        taker = next(t for t in self._owner.takers() if t["slot"] == slot)
        del self._dead[slot]
        self._owner.reap(slot)
        self._ends[slot] += 1
        self.deaths += 1
        point("reaper.freed")
        facts = event("process_died", pid=taker["pid"], engine=taker["name"], slot=slot)
        line = "process %d (%s) is gone: slot %d is free"
        self._told.tell(logging.INFO, taker["uid"], line, taker["pid"], taker["name"], slot, extra=facts)

    def _forget(self, slot: int) -> None:
        pidfd = self._watched.pop(slot, None)
        if pidfd is not None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
