"""The commands that change one device: writes, drops and syncs, and what their completion says about the device."""

from __future__ import annotations

import itertools
from array import array
from typing import Final

from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.log_throttle import FaultLog
from pagetier.daemon.disk.write_batch import WriteBatch, write_command
from pagetier.daemon.workers.worker_process import CommandSender, no_worker
from pagetier.shm import clock
from pagetier.shm._core import KEY_BYTES, DeviceUsage, Owner
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import ProtocolError
from pagetier.tiers.worker_protocol import Stored, Sync, Synced, Write, Wrote

_NS: Final = 1e9
_IN_FLIGHT: Final = 2
_MOST_DROPS: Final = 1 << 20  # in one command, because the size of a message is limited
_IDLE_S: Final = 1.0
STALLED_S: Final = 10.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


class DeviceWrites:
    """The commands of one device to write, drop and sync. On the loop's thread only.

    Attributes:
        number: The number of the device.
        refusal: The reason of the last page or sync that failed, until the next flush or worker; "" if there was none.
        device_bytes: Bytes that the workers of this daemon handed to the file system.
    """

    def __init__(self, owner: Owner, number: int, folder: str, sync_s: float) -> None:
        self._owner = owner
        self.number = number
        self.folder = folder
        self._sync_s = sync_s
        self._send: CommandSender = no_worker
        self._numbers = itertools.count(1)
        self._in_flight: dict[int, bytes] = {}
        self._dropping: dict[int, bytes] = {}
        self._lost_drops = b""
        self._paid: dict[int, int] = {}
        self._frame_bytes = owner.header().frame_bytes
        self._offset = 0  # stamp of a page on disk minus its tick in memory
        self.ready = False
        self._awaited_until = loop_clock.now() + STALLED_S
        self._syncing = False
        self._unsynced = False
        self._wrote_at = self._synced_at = self._moved_at = loop_clock.now()
        self._pause, self._paused_until = 0.0, 0.0
        place = folder.replace("%", "%%")
        self._writes = FaultLog(f"the disk tier in {place} cannot write: %s", f"the disk tier in {folder} writes again")
        self._syncs = FaultLog(f"the disk tier in {place} cannot sync: %s", f"the disk tier in {folder} syncs again")
        self._pages_failed = False
        self.refusal = ""
        self.device_bytes = 0

    @property
    def in_flight(self) -> int:
        """The number of pages that are being written."""
        return sum(map(len, self._in_flight.values())) // 4

    @property
    def commands(self) -> int:
        """The number of commands that are in progress."""
        return len(self._in_flight)

    @property
    def room(self) -> DeviceUsage:
        """What the device has."""
        return self._owner.disk_device(self.number)

    @property
    def write_trouble(self) -> str:
        """The reason why the last attempt to change the device failed; "" if it succeeded."""
        return self._writes.reason

    @property
    def trouble(self) -> str:
        """The reason why the last attempt to change the device, or the last sync, failed; "" if both succeeded."""
        return self._writes.reason or self._syncs.reason

    @property
    def sync_trouble(self) -> str:
        """The reason why the last sync failed; "" if it succeeded."""
        return self._syncs.reason

    @property
    def awaited(self) -> bool:
        """Whether the device has not said yet which pages it has, and soon will."""
        return self._awaited_until > 0.0 and loop_clock.now() < self._awaited_until  # asked for each store

    @property
    def accepts(self) -> bool:
        """Whether another batch may be sent to the device."""
        return self.ready and len(self._in_flight) < _IN_FLIGHT

    @property
    def paused(self) -> bool:
        """Whether pages should rather go to other devices, because this one failed to write or does not answer."""
        return loop_clock.now() < self._paused_until or bool(self.stalled())

    @property
    def writing(self) -> bool:
        """Whether pages are being written without trouble."""
        return bool(self._in_flight) and not self.trouble and not self.stalled()

    @property
    def busy(self) -> bool:
        """Whether pages are being written or synced, or wait for a sync."""
        return bool(self._in_flight) or self._syncing or self._unsynced

    @property
    def waits_for_success(self) -> bool:
        """Whether pages failed, and no command is in progress that could succeed."""
        return bool(self._writes.reason) and self._pages_failed and not self._in_flight

    def begin(self, send: CommandSender, drops: bytes, newest: int = 0) -> int:
        """Starts to send commands to a new worker. Pages that the previous worker did not drop are dropped again.

        Args:
            send: Sends the worker a command.
            drops: The keys of pages to drop before anything else.
            newest: The latest stamp on the device.

        Returns:
            The number of the command that drops the last of these keys; 0 if there are none.
        """
        self._offset = self._offset or _offset(newest)
        self._owner.disk_drop(self._lost_drops, self.number)
        self._lost_drops = b""
        self.ready, self._send, self._awaited_until = True, send, 0.0
        self.try_again()
        return self._drop(drops) if drops else 0

    def try_again(self) -> None:
        """Forgets earlier errors, so that all pages are tried again."""
        self._forget_trouble()
        self.refusal = ""

    def _forget_trouble(self) -> None:
        self.forget_failures()
        self._syncs.forget()
        self._pause = self._paused_until = 0.0

    def forget_failures(self) -> None:
        """Clears the fault of failed writes, because no later write would clear it."""
        self._writes.forget()

    def lost(self) -> None:
        """Forgets all commands: the worker is gone, and the index has put their pages back already."""
        self.ready = self._syncing = self._unsynced = False
        self._awaited_until = 0.0
        self._send = no_worker
        self._in_flight.clear()
        self._paid.clear()
        self._lost_drops += b"".join(self._dropping.values())
        self._dropping.clear()
        self._forget_trouble()  # the reason why there is no worker matters more than failed writes

    def drop_now(self) -> int:
        """Drops due pages; returns the command that completes this, 0 if none are left."""
        drops = self._owner.disk_drops(self.number)
        return self._drop(drops) if drops else max(self._dropping, default=0)

    def tidy(self) -> None:
        """Sends due drops and syncs. Called a few times a second."""
        if not self.ready:
            return
        drops = self._owner.disk_drops(self.number)
        if drops:
            self._drop(drops)
        now = loop_clock.now()
        idle = not self._in_flight and now - self._wrote_at > _IDLE_S
        if self._unsynced and not self._syncing and (idle or now - self._synced_at > self._sync_s):
            self._sync()

    def sync_soon(self) -> None:
        """Syncs as soon as no page is being written."""
        if self.ready and self._unsynced and not self._in_flight and not self._syncing:
            self._sync()

    def write(self, batch: WriteBatch, drops: bytes, paid: int) -> None:
        """Sends a batch, of which `paid` bytes are charged to the budget already."""
        self._unsynced = True
        spaces = self._owner.spaces() if len(batch) else []
        command = write_command(next(self._numbers), batch, drops, self._offset, spaces)
        self._paid[command.number] = paid
        self._put(command, batch.entries)
        point("write_behind.sent")

    def wrote(self, report: Wrote, results: bytes) -> int:
        """Handles a completed write command.

        Args:
            report: The report of the worker.
            results: The translation of its results to those of the index.

        Returns:
            The bytes that were written and are not charged to the budget yet; negative if fewer were written.

        Raises:
            ProtocolError: There is no such command.
        """
        entries = self._in_flight.pop(report.number, None)
        if entries is None or len(entries) != 4 * len(report.stored):
            raise ProtocolError("a report on pages without a write command")
        dropped = self._dropping.pop(report.number, None)
        point("write_behind.reported")
        self._owner.end_writes(entries, report.stored.translate(results))
        point("write_behind.ended")
        if Stored.NO_ROOM in report.stored:
            self._shrink(entries, report.stored.index(Stored.NO_ROOM))
        self.device_bytes += report.disk_bytes
        self._wrote_at = self._moved_at = loop_clock.now()
        if report.reason or dropped or Stored.DONE in report.stored:  # other commands did not change the disk
            self._writes.report(report.reason)
            self._pages_failed = Stored.FAILED in report.stored
        self._pause_after(report.stored)
        self.refusal = report.reason or self.refusal
        return report.disk_bytes - self._paid.pop(report.number, 0)

    def synced(self, report: Synced) -> None:
        """Handles a completed sync, which need not cover the pages written while it ran."""
        self._syncing = False
        self._synced_at = self._moved_at = loop_clock.now()
        self._syncs.report(report.reason)  # a successful sync does not clear the fault of failed writes
        self.refusal = report.reason or self.refusal

    def stalled(self) -> str:
        """Returns that the device has not completed a command for long, "" if it has."""
        waited = loop_clock.now() - self._moved_at
        if waited < STALLED_S or not (self._in_flight or self._syncing):
            return ""
        return f"the disk has not answered for {waited:.0f} s"

    def _pause_after(self, stored: bytes) -> None:
        """Lets pages go to other devices for a while, twice as long after each batch that failed."""
        if Stored.FAILED in stored:
            self._pause = min(2 * self._pause or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            self._paused_until = loop_clock.now() + self._pause
        elif Stored.DONE in stored:
            self._pause = 0.0

    def _shrink(self, entries: bytes, page: int) -> None:
        """Shrinks the device by the page's size: its free space is fragmented, and no fragment can take the page."""
        (size,) = array("Q", self._owner.sizes(entries[4 * page : 4 * page + 4]))
        self._owner.disk_shrink(-(-size // self._frame_bytes), self.number)
        point("write_behind.shrunk")

    def _drop(self, drops: bytes) -> int:
        """Asks the worker to drop these keys and returns the number of the last command."""
        self._unsynced = True
        number = 0
        for first in range(0, len(drops), KEY_BYTES * _MOST_DROPS):
            number = next(self._numbers)
            self._put(Write(number, drops[first : first + KEY_BYTES * _MOST_DROPS]), b"")
            point("write_behind.dropped")
        return number

    def _begin_waiting(self) -> None:
        if not self._in_flight and not self._syncing:
            self._moved_at = loop_clock.now()

    def _put(self, command: Write, entries: bytes) -> None:
        self._begin_waiting()
        self._in_flight[command.number] = entries
        if command.drops:
            self._dropping[command.number] = command.drops
        self._send(command)

    def _sync(self) -> None:
        self._begin_waiting()
        self._syncing, self._unsynced = True, False
        self._send(Sync(next(self._numbers)))


def _offset(newest: int) -> int:
    """Returns the difference between ticks and stamps, which order the pages on disk across restarts of the host.

    A later write gets a later stamp even if the host's clock was set back, or is wrong until the network is up.
    Otherwise the newest pages would be the first to leave the disk.
    """
    return max(int(clock.date() * _NS), newest) - clock.now_ns()
