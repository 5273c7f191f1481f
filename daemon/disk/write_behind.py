"""Write-behind: writes the coldest pages to disk before they have to leave memory."""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Mapping
from typing import Final

from pagetier.daemon.common.log_throttle import FaultLog
from pagetier.daemon.config.schema import BATCH_BYTES, SMALLEST_PART, DiskOptions
from pagetier.daemon.disk.status import Busy
from pagetier.daemon.disk.store_rate import StoreRate
from pagetier.daemon.disk.worker_process import CommandSender, no_worker
from pagetier.daemon.disk.write_batch import WriteBatch, write_command
from pagetier.daemon.disk.write_budget import Budget
from pagetier.shm._core import KEY_BYTES, Owner, WriteResult, WriteRule
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import ProtocolError
from pagetier.tiers.worker_protocol import Stored, Sync, Synced, Write, Wrote

RULES: Final[Mapping[str, WriteRule]] = {
    "evict": WriteRule.EVICTED,
    "through": WriteRule.THROUGH,
    "second": WriteRule.SECOND,
}
_BATCH_PAGES: Final = 2048
_IN_FLIGHT: Final = 2
_MOST_DROPS: Final = 1 << 20  # in one command, because the size of a message is limited
_IDLE_S: Final = 1.0
STALLED_S: Final = 10.0
_RECHECK_S: Final = 10.0  # the check walks over the whole index
_RESULT_OF_STORED: Final = bytes.maketrans(
    bytes([Stored.FAILED, Stored.DONE, Stored.GONE, Stored.NO_ROOM]),
    bytes([WriteResult.FAILED, WriteResult.DONE, WriteResult.AGAIN, WriteResult.AGAIN]),
)


class WriteBehind:
    """Decides which pages are written, and when. On the loop's thread only.

    Attributes:
        stores: How much engines store.
        flush_all: All pages are to be written, by a flush to disk.
        refusal: The reason of the last page or sync that failed, until the next flush or worker; "" if there was none.
        device_bytes: Bytes that the workers of this daemon handed to the file system.
    """

    def __init__(self, owner: Owner, options: DiskOptions, budget: Budget) -> None:
        header = owner.header()
        self._owner = owner
        self._options = options
        self._budget = budget
        self._send: CommandSender = no_worker
        self._numbers = itertools.count(1)
        self._in_flight: dict[int, bytes] = {}
        self._dropping: dict[int, bytes] = {}
        self._lost_drops = b""
        self._frame_bytes = header.frame_bytes
        self._batch = max(1, min(BATCH_BYTES // self._frame_bytes, header.frames // SMALLEST_PART))
        self._least_ahead = max(1, int(header.frames * options.write_behind))
        self._most_ahead = max(self._least_ahead, header.frames // 2)
        self.stores = StoreRate(self._frame_bytes)
        self._offset = 0  # stamp of a page on disk minus its tick in memory
        self._ready = False
        self._syncing = False
        self._unsynced = False
        self._wrote_at = self._synced_at = self._moved_at = time.monotonic()
        self._paid: dict[int, int] = {}
        self.flush_all = False
        self._writes = FaultLog("the disk tier cannot write: %s", "the disk tier writes again")
        self._syncs = FaultLog("the disk tier cannot sync: %s", "the disk tier syncs again")
        self._pages_failed = False
        self._checked_at = 0.0
        self.refusal = ""
        self.device_bytes = 0
        self.at_work = Busy()

    @property
    def in_flight(self) -> int:
        """The number of pages that are being written."""
        return sum(map(len, self._in_flight.values())) // 4

    @property
    def trouble(self) -> str:
        """The reason why the last attempt to change the disk, or the last sync, failed; "" if both succeeded."""
        return self._writes.reason or self._syncs.reason

    @property
    def ready(self) -> bool:
        """Whether there is a worker that accepts commands."""
        return self._ready

    def begin(self, send: CommandSender, drops: bytes, newest: int = 0) -> int:
        """Starts to send commands to a new worker. Pages that the previous worker did not drop are dropped again.

        Args:
            send: Sends the worker a command.
            drops: The keys of pages to drop before anything else.
            newest: The latest stamp on the disk.

        Returns:
            The number of the command that drops the last of these keys; 0 if there are none.
        """
        self._offset = self._offset or _offset(newest)
        self._owner.disk_drop(self._lost_drops)
        self._lost_drops = b""
        self._ready, self._send = True, send
        self.try_again()
        return self._drop(drops) if drops else 0

    def try_again(self) -> None:
        """Forgets earlier errors, so that all pages are tried again."""
        self._forget_trouble()
        self.refusal = ""

    def _forget_trouble(self) -> None:
        self._writes.forget()
        self._syncs.forget()

    def lost(self) -> None:
        """Forgets all commands: the worker is gone, and the index has put their pages back already."""
        self._ready = self._syncing = self._unsynced = False
        self._send = no_worker
        self._in_flight.clear()
        self.at_work.note(0)
        self._paid.clear()
        self._lost_drops += b"".join(self._dropping.values())
        self._dropping.clear()
        self._forget_trouble()  # the reason why there is no worker matters more than failed writes

    def drop_now(self) -> int:
        """Asks the worker to drop all due pages; returns the command that completes this, 0 if none are left."""
        drops = self._owner.disk_drops()
        return self._drop(drops) if drops else max(self._dropping, default=0)

    @property
    def writing(self) -> bool:
        """Whether pages are being written without trouble."""
        return bool(self._in_flight) and not self.trouble and not self.stalled()

    @property
    def busy(self) -> bool:
        """Whether pages are being written or synced, or wait for a sync."""
        return bool(self._in_flight) or self._syncing or self._unsynced

    def write_due(self) -> None:
        """Sends the writes that are due. Cheap, for a call after every reservation."""
        while self._ready and len(self._in_flight) < _IN_FLIGHT and self._due() and self._write_batch():
            pass

    def tidy(self) -> None:
        """Sends due drops and syncs. Called a few times a second."""
        if not self._ready:
            return
        self.write_due()
        drops = self._owner.disk_drops()
        if drops:
            self._drop(drops)
        self._sync_if_due()
        self._forget_if_done()

    def sync_soon(self) -> None:
        """Syncs as soon as no page is being written."""
        if self._ready and self._unsynced and not self._in_flight and not self._syncing:
            self._sync()

    def wrote(self, report: Wrote) -> None:
        """Handles a completed write command. Raises ProtocolError if there is no such command."""
        entries = self._in_flight.pop(report.number, None)
        if entries is None or len(entries) != 4 * len(report.stored):
            raise ProtocolError("a report on pages without a write command")
        self.at_work.note(len(self._in_flight))
        dropped = self._dropping.pop(report.number, None)
        point("write_behind.reported")
        self._owner.end_writes(entries, report.stored.translate(_RESULT_OF_STORED))
        point("write_behind.ended")
        if Stored.NO_ROOM in report.stored:
            self._shrink(entries, report.stored.index(Stored.NO_ROOM))
        self.device_bytes += report.disk_bytes
        self._budget.spend(report.disk_bytes - self._paid.pop(report.number, 0))
        self._wrote_at = self._moved_at = time.monotonic()
        if report.reason or dropped or Stored.DONE in report.stored:  # other commands did not change the disk
            self._writes.report(report.reason)
            self._pages_failed = Stored.FAILED in report.stored
        self.refusal = report.reason or self.refusal
        self.write_due()

    def synced(self, report: Synced) -> None:
        """Handles a completed sync, which need not cover the pages written while it ran."""
        self._syncing = False
        self._synced_at = self._moved_at = time.monotonic()
        self._syncs.report(report.reason)  # a successful sync does not clear the fault of failed writes
        self.refusal = report.reason or self.refusal

    def _shrink(self, entries: bytes, page: int) -> None:
        """Shrinks the tier by the page's size: its free space is fragmented, and no fragment can take the page."""
        (size,) = array("Q", self._owner.sizes(entries[4 * page : 4 * page + 4]))
        self._owner.disk_shrink(-(-size // self._frame_bytes))
        point("write_behind.shrunk")

    def _due(self) -> bool:
        if self.flush_all or self._options.write == "through":
            return True
        ahead = self._ahead()
        return self._owner.frames_before_unwritten(ahead) + self.in_flight < ahead  # a page has one frame at least

    def _ahead(self) -> int:
        """Returns how many frames are to be free or written: as many as engines have just stored, within limits."""
        return max(self._least_ahead, min(self.stores.frames, self._most_ahead))

    def _write_batch(self) -> bool:
        """Sends a batch. Returns False if there was nothing to write."""
        batch = WriteBatch(*self._owner.start_writes(self._batch, _BATCH_PAGES))
        point("write_behind.chosen")
        allowed = self._within_budget(batch)
        drops = self._owner.disk_drops()
        if not len(allowed) and not drops:
            return len(batch) > 0
        self._unsynced = True
        spaces = self._owner.spaces() if len(allowed) else []
        command = write_command(next(self._numbers), allowed, drops, self._offset, spaces)
        self._paid[command.number] = 0 if self.flush_all else sum(array("Q", allowed.sizes))
        self._put(command, allowed.entries)
        point("write_behind.sent")
        return len(batch) > 0

    def _within_budget(self, batch: WriteBatch) -> WriteBatch:
        """Returns the pages that the budget allows. The others may leave memory unwritten."""
        if not self._budget.per_day or self.flush_all:
            return batch
        chains, sizes = array("I", batch.chains), array("Q", batch.sizes)
        verdicts = [self._budget.allows(chain, size) for chain, size in zip(chains, sizes, strict=True)]
        skipped = batch.only([i for i, allowed in enumerate(verdicts) if not allowed])
        if len(skipped):
            self._owner.end_writes(skipped.entries, bytes([WriteResult.SKIPPED]) * len(skipped))
        return batch.only([i for i, allowed in enumerate(verdicts) if allowed])

    def _drop(self, drops: bytes) -> int:
        """Asks the worker to drop these keys and returns the number of the last command."""
        self._unsynced = True
        number = 0
        for first in range(0, len(drops), KEY_BYTES * _MOST_DROPS):
            number = next(self._numbers)
            self._put(Write(number, drops[first : first + KEY_BYTES * _MOST_DROPS]), b"")
            point("write_behind.dropped")
        return number

    def stalled(self) -> str:
        """Returns that the disk has not completed a command for long, "" if it has."""
        waited = time.monotonic() - self._moved_at
        if waited < STALLED_S or not (self._in_flight or self._syncing):
            return ""
        return f"the disk has not answered for {waited:.0f} s"

    def _begin_waiting(self) -> None:
        if not self._in_flight and not self._syncing:
            self._moved_at = time.monotonic()

    def _put(self, command: Write, entries: bytes) -> None:
        self._begin_waiting()
        self._in_flight[command.number] = entries
        self.at_work.note(len(self._in_flight))
        if command.drops:
            self._dropping[command.number] = command.drops
        self._send(command)

    def _sync_if_due(self) -> None:
        now = time.monotonic()
        idle = not self._in_flight and now - self._wrote_at > _IDLE_S
        if self._unsynced and not self._syncing and (idle or now - self._synced_at > self._options.sync):
            self._sync()

    def _sync(self) -> None:
        self._begin_waiting()
        self._syncing, self._unsynced = True, False
        self._send(Sync(next(self._numbers)))

    def _forget_if_done(self) -> None:
        """Clears the fault of failed writes once all pages are on disk, because no later write would clear it."""
        now = time.monotonic()
        waits = self._writes.reason and self._pages_failed and not self._in_flight
        if not waits or now - self._checked_at < _RECHECK_S:
            return
        self._checked_at = now
        left = self._owner.unwritten()
        if not left.pages and not left.skipped:
            self._writes.forget()


def _offset(newest: int) -> int:
    """Returns the difference between ticks and stamps, which order the pages on disk across restarts of the host.

    A later write gets a later stamp even if the host's clock was set back, or is wrong until the network is up.
    Otherwise the newest pages would be the first to leave the disk.
    """
    return max(time.time_ns(), newest) - time.monotonic_ns()
