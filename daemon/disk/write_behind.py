"""Write-behind: writes the coldest pages to disk before they have to leave memory, and chooses the device of each.

How far ahead follows what engines store (`StoreRate`). The steps of one batch, in this order:

1. *Chosen* (`_write_batch`). The index marks each page, takes it off the lists of eviction and reserves frames on the
   device. So the page keeps its frames until step 4, and the device has room for it.
2. *Sent* (`DiskDevice.write`). The command is recorded before it is sent: any report finds it.
3. *Written*, by the worker. It pins each page by entry and serial, so a page that was dropped since, and whose entry
   may have another page by now, is not written but reported as gone. It copies nothing: the bytes go from the arena to
   the file, and the pin keeps them unchanged. Then it commits the record of the page and its checksum, and unpins.
4. *Reported* (`DiskDevice.hear`). The device finds the command, and an invalid report ends the worker.
5. *Ended* (`wrote`). Only now the index says that the page is on disk, and the page may leave memory. So there is no
   moment at which the index names bytes that are not committed.

What a death between two steps leaves:

- The worker dies before step 5: the index unmarks the page (`DiskDevice.ended`), and it is written again. If the bytes
  were committed, the next worker's inventory names them. A key determines the bytes of a page and each read verifies
  the checksum, so these bytes are either the right ones or a miss.
- The daemon dies: the next one finds marks in the index and clears them when it adopts. Its worker reports the files as
  they are.
- A flush does not end a write: between steps 1 and 5 a page is in use, and the flush counts it as kept.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from operator import not_
from typing import Final

from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.busy_time import BusyTime
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.schema import BATCH_BYTES, SMALLEST_PART
from pagetier.daemon.disk.commands_in_flight import PendingWrite
from pagetier.daemon.disk.disk_device import DiskDevice
from pagetier.daemon.disk.write_budget import Budget
from pagetier.shm._core import Owner, WriteResult, WriteRule
from pagetier.shm.failpoints import point
from pagetier.shm.page_rows import PAGE_SLOTS, PAGES_TO_WRITE
from pagetier.shm.protocol import Space
from pagetier.tiers.worker_protocol import Stored, Wrote

_RULES: Final[Mapping[str, WriteRule]] = {
    "evict": WriteRule.EVICTED,
    "through": WriteRule.THROUGH,
    "second": WriteRule.SECOND,
}
_BATCH_PAGES: Final = 2048
_RECHECK_S: Final = 10.0  # the check walks over the whole index
_STORES_S: Final = 10.0  # long enough for a prompt to be published and for the disk to write as much
_NO_STORES: Final = 0.5  # frames
_STORED: Final = bytes([Stored.FAILED, Stored.DONE, Stored.GONE, Stored.NO_ROOM])
_FINAL: Final = bytes.maketrans(
    _STORED, bytes([WriteResult.FAILED, WriteResult.DONE, WriteResult.AGAIN, WriteResult.AGAIN])
)
_TRIED_ELSEWHERE: Final = bytes.maketrans(
    _STORED, bytes([WriteResult.AGAIN, WriteResult.DONE, WriteResult.AGAIN, WriteResult.AGAIN])
)


class StoreRate:
    """The frames that were granted to engines in the last seconds. Older ones count less, as e**(-seconds / 10).

    A prompt counts in full at once: as much may be stored again before the disk has written a page.
    """

    def __init__(self, frame_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        self._level = 0.0
        self._at = loop_clock.now()

    def add(self, granted: int, nbytes: int, now: float) -> None:
        """Records that so many pages, with so many bytes, were granted `now`, by the loop's time."""
        if granted:
            frames = math.ceil(nbytes / self._frame_bytes)
            self._level, self._at = self._level_at(now) + max(granted, frames), now

    @property
    def frames(self) -> int:
        """The number of frames."""
        level = self._level_at(loop_clock.now())
        return math.ceil(level) if level >= _NO_STORES else 0

    def _level_at(self, now: float) -> float:
        return self._level * math.exp((self._at - now) / _STORES_S)


class WriteBehind:
    """Decides which pages are written, when, and to which device. Implements SharedWrites. On the loop's thread only.

    A batch goes to a device that has room, among those to the one with the fewest frames on their way, among equals to
    the one with the largest free share, so that devices of different sizes fill up together. When all are full, the one
    with the coldest page takes it, so that pages leave the disk in about the order of one large device. A device that
    failed or does not answer is left out for a while as long as another one writes.

    Attributes:
        stores: How much engines store.
        flush_all: All pages are to be written, by a flush to disk.
        at_work: How long writes were in progress.
    """

    def __init__(self, owner: Owner, options: DiskOptions, budget: Budget, devices: Sequence[DiskDevice]) -> None:
        header = owner.header()
        self._owner, self._options = owner, options
        self._budget, self._devices = budget, devices
        self._frames = header.frames
        self._frame_bytes = header.frame_bytes
        self._least_ahead = max(1, int(header.frames * options.write_behind))
        self._least_choice = max(self._least_ahead, header.frames // 3)
        self._most_ahead = max(self._least_ahead, header.frames // 2)
        self.stores = StoreRate(self._frame_bytes)
        self.flush_all = False
        self._checked_at = 0.0
        self.at_work = BusyTime()

    @property
    def rule(self) -> WriteRule:
        """The rule by which pages are written now."""
        return WriteRule.THROUGH if self.flush_all else _RULES[self._options.write]

    @property
    def in_flight(self) -> int:
        """The number of pages that are being written."""
        return sum(device.commands.pages for device in self._devices)

    @property
    def trouble(self) -> str:
        """The reason why pages or a sync failed, "" if none did. Pages that another device takes did not fail."""
        writes = [device.health.writes.reason for device in self._devices if device.ready]
        syncs = (device.health.syncs.reason for device in self._devices)
        return (next(filter(None, writes), "") if all(writes) else "") or next(filter(None, syncs), "")

    @property
    def refusal(self) -> str:
        """The reason of a page or sync that failed, until the next flush or worker; "" if there was none."""
        return next(filter(None, (device.health.refusal for device in self._devices)), "")

    @property
    def writing(self) -> bool:
        """Whether pages are being written without trouble. Asked for each store."""
        return bool(self._devices) and any(device.writing for device in self._devices)

    @property
    def busy(self) -> bool:
        """Whether pages are being written or synced, or wait for a sync."""
        return any(device.commands.busy for device in self._devices)

    def stalled(self) -> str:
        """Returns that a device has not completed a command for long, "" if all have."""
        return next(filter(None, (device.commands.stalled() for device in self._devices)), "")

    def try_again(self) -> None:
        """Forgets earlier errors, so that all pages are tried again."""
        for device in self._devices:
            device.health.try_again()

    def write_due(self) -> None:
        """Sends the writes that are due. Cheap, for a call after every reservation.

        While a new device is being opened, nothing is written: it may have the pages that would be written to others.
        """
        if not self._devices or any(device.awaited for device in self._devices):
            return
        while any(device.accepts for device in self._devices):
            ahead = self._ahead()
            # A tenant whose maximum makes it evict unwritten pages is marked: its pages are then the next ones.
            if not (self._too_few_written(ahead) or self._owner.mark_hurries(ahead)):
                break
            if not any(self._write_batch(device) for device in self._in_order()):
                break
        self.note_work()

    def tidy(self) -> None:
        """Sends due writes, drops and syncs. Called a few times a second."""
        self.write_due()
        for device in self._devices:
            device.tidy(self._options.sync)
        self.note_work()
        self._forget_if_done()

    def sync_soon(self) -> None:
        """Syncs each device as soon as no page is being written to it."""
        for device in self._devices:
            device.sync_soon()

    def wrote(self, device: int, write: PendingWrite, report: Wrote) -> None:
        """Ends the writes of a command in the index, charges the budget, and sends the writes that are due.

        Pages that the device could not write are tried on another one.

        Args:
            device: The number of the device.
            write: The command.
            report: What the worker wrote of it.
        """
        others = any(other.number != device and other.ready and not other.paused for other in self._devices)
        results = report.stored.translate(_TRIED_ELSEWHERE if others else _FINAL)
        self._owner.end_writes(write.pages, results, report.slots or PAGE_SLOTS.zeros(len(results)))
        point("write_behind.ended")
        if Stored.NO_ROOM in report.stored:
            self._shrink(device, write.pages, report.stored.index(Stored.NO_ROOM))
        # Trees and padding cost more than was paid; pages that failed cost nothing, and their payment comes back.
        self._budget.spend(report.disk_bytes - write.paid)
        self.note_work()
        # The pages of this command can leave memory now, so the device and the stores that come may want the next ones.
        self.write_due()

    def _shrink(self, device: int, pages: bytes, page: int) -> None:
        """Shrinks a device by a page's size: its free space is fragmented, and no fragment can take the page."""
        size = PAGES_TO_WRITE.row(pages, page).size
        self._owner.disk_shrink(-(-size // self._owner.disk_device(device).slot_bytes), device)
        point("write_behind.shrunk")

    def note_work(self) -> None:
        """Takes note of whether pages are being written, for the time that the metrics show."""
        self.at_work.note(sum(len(device.commands) for device in self._devices))

    def _in_order(self) -> Iterable[DiskDevice]:
        """Returns the devices that accept a batch, the best place first."""
        usable = [device for device in self._devices if device.ready and not device.paused] or self._devices
        return sorted((device for device in usable if device.accepts), key=self._rank)

    def _rank(self, device: DiskDevice) -> tuple[bool, int, float]:
        usage = self._owner.disk_device(device.number)
        free = usage.slots - usage.used_slots - usage.ordered_slots
        return free <= 0, usage.ordered_slots, -free / usage.slots if free > 0 else usage.coldest

    def _too_few_written(self, ahead: int) -> bool:
        """Returns whether more pages are to be written so that `ahead` frames are free or written."""
        # A page that is being written has one frame at least.
        return self.rule is WriteRule.THROUGH or self._owner.frames_before_unwritten(ahead) + self.in_flight < ahead

    def _ahead(self) -> int:
        """Returns how many frames are to be free or written: as many as engines have just stored, within limits.

        A policy that learned chooses among pages that may leave, and those are the written ones: so they are more.
        """
        order = self._owner.eviction()
        least = self._least_choice if order.learned and not order.follows_lru else self._least_ahead
        return max(least, min(self.stores.frames, self._most_ahead))

    @property
    def _batch(self) -> int:
        """The frames of a batch.

        All devices together have as much on its way as one would have. So a prompt of some batches is spread over them,
        and those that hang keep no more of the arena.
        """
        devices = len(self._devices)
        return max(1, min(BATCH_BYTES // self._frame_bytes // devices, self._frames // (SMALLEST_PART * devices)))

    def _write_batch(self, device: DiskDevice) -> bool:
        """Sends a batch to a device. Returns False if there was nothing to write."""
        # From here on each page of the batch is marked, and only end_writes() unmarks it: now, if the budget does not
        # allow it, else when the worker has reported it or is gone.
        batch = self._owner.start_writes(self._batch, _BATCH_PAGES, device.number, device.stamp_offset)
        point("write_behind.chosen")
        allowed = self._charge_budget(batch)
        # The room for the batch was made by evicting pages of the device: their keys are among these drops.
        drops = self._owner.disk_drops(device.number)
        if allowed or drops:
            pages = list(PAGES_TO_WRITE.read(allowed))
            paid = 0 if self.flush_all else sum(page.size for page in pages)
            device.write(allowed, self._namespaces({page.space for page in pages}), drops, paid)
        return len(batch) > 0

    def _charge_budget(self, batch: bytes) -> bytes:
        """Charges the budget and returns the pages that it allows. The others may leave memory unwritten."""
        if not self._budget.per_day or self.flush_all:
            return batch
        pages = list(PAGES_TO_WRITE.read(batch))
        verdicts = [self._budget.charge(page.reservation, page.size) for page in pages]
        if skipped := list(compress(pages, map(not_, verdicts))):
            self._owner.end_writes(PAGES_TO_WRITE.pack(skipped), bytes([WriteResult.SKIPPED]) * len(skipped))
        return PAGES_TO_WRITE.pack(compress(pages, verdicts))

    def _namespaces(self, numbers: Collection[int]) -> dict[int, Space]:
        """Returns the namespaces with these numbers in the index."""
        records = self._owner.spaces() if numbers else []
        return {
            one.number: Space(one.digest, one.name, one.page_tokens, one.group, one.window)
            for one in records
            if one.number in numbers
        }

    def _forget_if_done(self) -> None:
        """Clears the fault of failed writes once all pages are on disk, because no later write would clear it."""
        now = loop_clock.now()
        waiting = [one for one in self._devices if one.ready and one.health.has_failed_pages and not one.commands]
        if not waiting or now - self._checked_at < _RECHECK_S:
            return
        self._checked_at = now
        left = self._owner.unwritten()
        if not left.pages and not left.skipped:
            for device in waiting:
                device.health.writes.forget()
