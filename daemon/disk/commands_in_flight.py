"""The commands of one device that its worker has not answered yet."""

from __future__ import annotations

from typing import Final

import msgspec

from pagetier.daemon.common import loop_clock
from pagetier.shm.page_rows import PAGE_SLOTS, PAGES_TO_WRITE
from pagetier.shm.protocol import ProtocolError
from pagetier.tiers.worker_protocol import Write, Wrote

STALLED_S: Final = 10.0
_IDLE_S: Final = 1.0


class PendingWrite(msgspec.Struct, frozen=True):
    """A write command without a report.

    Attributes:
        pages: Its pages, rows of PAGES_TO_WRITE; b"" if it only drops pages.
        drops: The keys of the pages that the worker drops before it writes.
        paid: The bytes for which the budget was charged when the pages were chosen.
    """

    pages: bytes
    drops: bytes
    paid: int


def unanswered(waited_s: float) -> str:
    """Returns that a device has not completed a command for long, "" if `waited_s` seconds are not long."""
    return f"the disk has not answered for {waited_s:.0f} s" if waited_s >= STALLED_S else ""


class CommandsInFlight:
    """The writes, drops and the sync that a device has not completed. On the loop's thread only.

    Attributes:
        syncing: Whether a sync is in progress.
        unsynced: Whether the worker was asked to change the disk since the last sync was sent.
        lost_drops: The keys of pages that an earlier worker was asked to drop and may not have dropped.
    """

    def __init__(self) -> None:
        self._writes: dict[int, PendingWrite] = {}
        self.syncing = self.unsynced = False
        self.lost_drops = b""
        self._wrote_at = self._synced_at = loop_clock.now()
        self._moved_at = loop_clock.now()  # when a command ended, or the first one was sent to an idle worker

    def __len__(self) -> int:
        return len(self._writes)

    @property
    def busy(self) -> bool:
        """Whether pages are being written or synced, or wait for a sync."""
        return bool(self) or self.syncing or self.unsynced

    @property
    def pages(self) -> int:
        """The number of pages that are being written."""
        return sum(PAGES_TO_WRITE.count(write.pages) for write in self._writes.values())

    @property
    def last_drop(self) -> int:
        """The number of the last command that drops pages, 0 if there is none."""
        return max((number for number, write in self._writes.items() if write.drops), default=0)

    def add(self, command: Write, paid: int) -> None:
        """Records a command that is about to be sent, so that its report finds it."""
        self._begin_waiting()
        self.unsynced = True
        self._writes[command.number] = PendingWrite(command.pages, command.drops, paid)

    def end(self, report: Wrote) -> PendingWrite:
        """Removes the command that this report answers. Raises ProtocolError if there is no such command."""
        write = self._writes.get(report.number)
        sound = PAGE_SLOTS.is_whole(report.slots) and PAGE_SLOTS.count(report.slots) in (0, len(report.stored))
        if write is None or PAGES_TO_WRITE.count(write.pages) != len(report.stored) or not sound:
            raise ProtocolError("a report on pages without a write command")
        self._wrote_at = self._moved_at = loop_clock.now()
        return self._writes.pop(report.number)

    def sync_due(self, longest_s: float) -> bool:
        """Returns whether to sync: the device is idle, or was not synced for `longest_s` although it changed."""
        now = loop_clock.now()
        idle = not self._writes and now - self._wrote_at > _IDLE_S
        return self.unsynced and not self.syncing and (idle or now - self._synced_at > longest_s)

    def begin_sync(self) -> None:
        """Records a sync that is about to be sent. What is written while it runs needs another one."""
        self._begin_waiting()
        self.syncing, self.unsynced = True, False

    def end_sync(self) -> None:
        """Takes note that the sync has ended."""
        self.syncing = False
        self._synced_at = self._moved_at = loop_clock.now()

    def lose(self) -> None:
        """Forgets all commands, as their worker is gone. Their drops are kept: the pages may still be on the device."""
        self.lost_drops += b"".join(write.drops for write in self._writes.values())
        self._writes.clear()
        self.syncing = self.unsynced = False

    def stalled(self) -> str:
        """Returns that the device has not completed a command for long, "" if it has."""
        return unanswered(loop_clock.now() - self._moved_at if self._writes or self.syncing else 0.0)

    def _begin_waiting(self) -> None:
        if not self._writes and not self.syncing:
            self._moved_at = loop_clock.now()
