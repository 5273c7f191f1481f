"""Frees the slots of dead processes, which a pidfd for each attached process detects."""

from __future__ import annotations

import asyncio
import logging
import os

from pagetier.daemon.common.descriptor_limit import reason_with_limit
from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.shm._core import SLOTS, Owner, ShmError
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.process import Process

log = logging.getLogger(__name__)


class Reaper:
    """Watches the process of each slot and reclaims the slot and its pages after its death. On the loop's thread only.

    A process's socket may close long before its GPU work ends, so a closed connection is ignored. Nothing guarantees
    that the GPU work has ended when the process has, so the slot is reclaimed `quarantine` seconds after the death.

    Attributes:
        deaths: Attached processes that ended without detaching, since this daemon started.
    """

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop, quarantine: float) -> None:
        self._quarantine = quarantine
        self._dead: dict[int, asyncio.TimerHandle] = {}
        self._owner = owner
        self._loop = loop
        self._watched: dict[int, int] = {}
        self._ends = [0] * SLOTS
        self._throttle = LogThrottle(log)
        self.deaths = 0

    def watch(self, slot: int, pidfd: int) -> None:
        """Watches the slot through `pidfd`, which the reaper closes. The first pidfd of a slot stays in use.

        A process may request its slot, and die, while no daemon reads. The next daemon detects its death first; the
        slot is then freed by that death.
        """
        if slot in self._watched or slot in self._dead:
            os.close(pidfd)
            return
        self._watched[slot] = pidfd
        self._loop.add_reader(pidfd, self._died, slot)

    def watch_adopted(self) -> None:
        """Watches the processes that the segments of an earlier daemon list.

        Raises:
            ShmError: It is unknown whether a process lives. Pages of a living process must not be reclaimed.
        """
        for attachment in self._owner.attachments():
            try:
                self.watch(attachment.slot, Process(attachment.pid, attachment.started).watch())
            except ProcessLookupError:
                self._reap_later(attachment.slot)
            except OSError as error:
                raise ShmError(f"cannot watch process {attachment.pid}{reason_with_limit(error)}") from error

    def release(self, slot: int) -> None:
        """Frees a slot whose process no longer uses any page, at once, unless the process is dead already."""
        if slot not in self._dead:
            self._forget(slot)
            self._owner.reap(slot)
            self._ends[slot] += 1

    def ends(self, slot: int) -> int:
        """Returns how often this slot was freed.

        A reply that is sent later is still valid if the number has not changed.
        """
        return self._ends[slot]

    def close(self) -> None:
        """Stops watching. The slots stay as they are."""
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
        attachment = next(one for one in self._owner.attachments() if one.slot == slot)
        del self._dead[slot]
        self._owner.reap(slot)
        self._ends[slot] += 1
        self.deaths += 1
        point("reaper.freed")
        facts = event("process_died", pid=attachment.pid, engine=attachment.name, slot=slot)
        line = "process %d (%s) ended without detaching: slot %d is free"
        self._throttle.log(logging.INFO, attachment.uid, line, attachment.pid, attachment.name, slot, extra=facts)

    def _forget(self, slot: int) -> None:
        pidfd = self._watched.pop(slot, None)
        if pidfd is not None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
