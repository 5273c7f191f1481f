"""Frees the slots of dead processes: by their pidfds, or after an adoption by the locks that their mappings keep."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final

from pagetier.daemon.common.descriptor_limit import reason_with_limit
from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.daemon.index.engine_names import EngineNames
from pagetier.daemon.index.slots import sessions_of
from pagetier.shm._core import SLOTS, AttachmentRecord, Owner, ShmError
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.process import Process, has_ended, reopen_pidfd
from pagetier.shm.slot_locks import UNLOCKED, SlotLocks, is_lock

log = logging.getLogger(__name__)

_POLL_S: Final = 0.1
_BACK_S: Final = 10.0  # in which sessions attach again: a slot whose lock only is held is shown after that
_UNJUDGED: Final = (
    "slot %d (%s of user %d) is kept: its process cannot be watched until it attaches again; "
    "if it has ended, run pagetier reclaim %d"
)
_ENDED: Final = ("%s has ended, stopped or killed: slot %d is free, and what it stored stays", "process_died")
_UNMAPPED: Final = ("%s has lost its mapping without detaching (exec?): slot %d is free", "slot_unmapped")


class Reaper:
    """Watches the process of each slot and reclaims the slot and its pages after its death. On the loop's thread only.

    A process is dead when its pidfd says so. An adopted slot has no pidfd until its session attaches again, unless the
    recorded PID still names the recorded process here. Its process is dead when no mapping keeps the slot's lock. What
    /proc or a PID namespace shows is no evidence: a slot that neither a pidfd nor a lock judges is kept. A process that
    executes another program lives, but its mapping is gone: see free_unmapped().

    A process's socket may close long before its GPU work ends, so a closed connection is ignored. Nothing guarantees
    that the GPU work has ended when the process has, so the slot is reclaimed `quarantine` seconds after the death.

    Attributes:
        names: Names the attached processes.
        deaths: Attached processes that ended without detaching, since this daemon started.
    """

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop, quarantine: float, locks: SlotLocks) -> None:
        """Takes `locks`, which close() closes."""
        self._quarantine = quarantine
        self._locks = locks
        self.names = EngineNames(owner)
        self._adopted: dict[int, int] = {}  # the lock of each adopted slot without a pidfd; 0: it has none
        self._adopted_at = loop.time()
        self._polling: asyncio.TimerHandle | None = None
        self._dead: dict[int, asyncio.TimerHandle] = {}
        self._unmapped: set[int] = set()  # those among the dead whose process lives
        self._owner = owner
        self._loop = loop
        self._watched: dict[int, int] = {}
        self._ends = [0] * SLOTS
        self._throttle = LogThrottle(log)
        self.deaths = 0

    def watch(self, slot: int, pidfd: int) -> None:
        """Watches the slot through `pidfd`, which the reaper closes. The first pidfd of a slot stays in use.

        A process may request its slot, and die, while no daemon reads. The next daemon detects its death first; the
        slot is then freed by that death. A process that lives and had not mapped the segments yet keeps its slot.
        """
        if slot in self._watched or (slot in self._dead and has_ended(pidfd)):
            os.close(pidfd)
            return
        # The session is back, so it no longer depends on its lock, and a death that an earlier pidfd reported was not
        # that of this process: the quarantine ends without freeing the slot.
        self._adopted.pop(slot, None)
        self._stop_reaping(slot)
        self._watched[slot] = pidfd
        self._loop.add_reader(pidfd, self._died, slot)

    def watch_adopted(self) -> None:
        """Watches the processes that the segments of an earlier daemon list.

        Raises:
            ShmError: Descriptors are short. Too few of them would also keep engines from attaching again.
        """
        for attachment in self._owner.attachments():
            try:
                pidfd = reopen_pidfd(attachment.pid, attachment.kernel_id)
            except OSError as error:
                whose = f"process of slot {attachment.slot}, {attachment.name} of user {attachment.uid}"
                raise ShmError(f"cannot watch the {whose}{reason_with_limit(error)}") from error
            if pidfd is not None:
                self.watch(attachment.slot, pidfd)
                continue
            # The PID names another process here, or none. That proves no death: the process may live in a namespace
            # that this daemon does not see. So the lock of its mapping decides, or nothing does.
            self.names.lost_sight(attachment.slot)
            self._adopted[attachment.slot] = attachment.lock if is_lock(attachment.lock) else 0
            if not self._adopted[attachment.slot]:
                self._log_unjudged(attachment)
        self._poll()

    def free_unmapped(self, process: Process, token: int) -> None:
        """Frees the slots of a process's other sessions that map nothing, as after exec. Called before it attaches.

        Whatever the daemon sent for such a slot had its lock, so a lock that is gone leaves no mapping, and none can
        follow: a session gets descriptors only when it attaches again, which ends the quarantine.
        """
        for one in sessions_of(self._owner.attachments(), process):
            watched = one.slot in self._watched and one.token != token
            if watched and is_lock(one.lock) and not self._locks.is_held(one.lock):
                self._unmapped.add(one.slot)
                self._died(one.slot)

    def warn_if_unlocked(self, slot: int, user: int) -> None:
        """Logs that descriptors without a lock are sent for a slot, as often as this user may cause it."""
        if not self._owner.lock_of(slot):
            self._throttle.log(logging.WARNING, user, UNLOCKED, slot, extra=event("slot_unlocked", slot=slot))

    @property
    def locked(self) -> list[int]:
        """The adopted slots that are judged by their locks until their sessions attach again."""
        return sorted(slot for slot, lock in self._adopted.items() if lock)

    @property
    def unjudged(self) -> list[int]:
        """The adopted slots of which nothing says whether their process lives.

        They are kept until their sessions attach again or they are reclaimed. One whose lock is held is among them if
        its session has had the time to attach again: another process may have the lock.
        """
        late = self._loop.time() - self._adopted_at > _BACK_S
        return sorted(slot for slot, lock in self._adopted.items() if late or not lock)

    def reclaim(self, slot: int) -> str:
        """Frees an adopted slot whose process an administrator takes for dead, or returns why it is not freed."""
        if slot not in self._adopted:
            return f"slot {slot} is free, or the daemon watches its process"
        if self._is_held(slot):
            return (
                f"a process still maps the arena for slot {slot}, or has its lock: the slot is free when it has ended"
            )
        del self._adopted[slot]
        self._reap_later(slot)
        return ""

    def release(self, slot: int) -> None:
        """Frees a slot whose process no longer uses any page, at once, unless the process is dead already."""
        if slot in self._unmapped:
            self._stop_reaping(slot)
        # A dead process may have GPU work that still writes into the arena, so its quarantine is not cut short.
        if slot not in self._dead:
            self._adopted.pop(slot, None)
            self._forget(slot)
            self._owner.reap(slot)
            self.names.freed(slot)
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
        if self._polling is not None:
            self._polling.cancel()
        self._locks.close()

    def _poll(self) -> None:
        """Finds the adopted slots whose lock the kernel has dropped, until all their sessions are back."""
        # The kernel drops a lock after it has removed the mapping, so an adopted slot without its lock cannot write.
        for slot in self.locked:
            if not self._is_held(slot):
                del self._adopted[slot]
                self._died(slot)
        self._polling = self._loop.call_later(_POLL_S, self._poll) if self.locked else None

    def _is_held(self, slot: int) -> bool:
        lock = self._adopted[slot]
        return bool(lock) and self._locks.is_held(lock)

    def _died(self, slot: int) -> None:
        # The pidfd stays readable for good, so it is closed now; the slot keeps its pages until the quarantine is over.
        self._forget(slot)
        point("reaper.noticed")
        self._reap_later(slot)

    def _reap_later(self, slot: int) -> None:
        self._dead[slot] = self._loop.call_later(self._quarantine, self._reap, slot)

    def _stop_reaping(self, slot: int) -> None:
        """Keeps a slot in the quarantine: its session has attached again."""
        self._unmapped.discard(slot)
        if slot in self._dead:
            self._dead.pop(slot).cancel()

    def _reap(self, slot: int) -> None:
        attachment = next(one for one in self._owner.attachments() if one.slot == slot)
        del self._dead[slot]
        # The count grows with the reap and before any other request is handled, so that answers that still wait for
        # this slot are dropped instead of reaching its next owner.
        self._owner.reap(slot)
        self._ends[slot] += 1
        self.deaths += slot not in self._unmapped
        point("reaper.freed")
        pid, name = self.names.pid_of(attachment), self.names.of(attachment)
        self.names.freed(slot)
        line, what = _ENDED if slot not in self._unmapped else _UNMAPPED
        self._unmapped.discard(slot)
        facts = event(what, pid=pid, engine=attachment.name, slot=slot, uid=attachment.uid)
        self._throttle.log(logging.INFO, attachment.uid, line, name, slot, extra=facts)

    def _log_unjudged(self, attachment: AttachmentRecord) -> None:
        facts = event("slot_unjudged", slot=attachment.slot, uid=attachment.uid)
        values = (attachment.slot, attachment.name, attachment.uid, attachment.slot)
        self._throttle.log(logging.WARNING, attachment.uid, _UNJUDGED, *values, extra=facts)

    def _forget(self, slot: int) -> None:
        pidfd = self._watched.pop(slot, None)
        if pidfd is not None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
