"""Write-behind: writes the coldest pages to disk before they have to leave memory, and chooses the device of each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Final

from pagetier.daemon.common import loop_clock
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.schema import BATCH_BYTES, SMALLEST_PART
from pagetier.daemon.disk.busy_time import BusyTime
from pagetier.daemon.disk.device_writes import DeviceWrites
from pagetier.daemon.disk.store_rate import StoreRate
from pagetier.daemon.disk.write_batch import WriteBatch
from pagetier.daemon.disk.write_budget import Budget
from pagetier.shm._core import Owner, WriteResult, WriteRule
from pagetier.shm.failpoints import point
from pagetier.tiers.worker_protocol import Stored, Wrote

RULES: Final[Mapping[str, WriteRule]] = {
    "evict": WriteRule.EVICTED,
    "through": WriteRule.THROUGH,
    "second": WriteRule.SECOND,
}
_BATCH_PAGES: Final = 2048
_RECHECK_S: Final = 10.0  # the check walks over the whole index
_STORED: Final = bytes([Stored.FAILED, Stored.DONE, Stored.GONE, Stored.NO_ROOM])
_FINAL: Final = bytes.maketrans(
    _STORED, bytes([WriteResult.FAILED, WriteResult.DONE, WriteResult.AGAIN, WriteResult.AGAIN])
)
_TRIED_ELSEWHERE: Final = bytes.maketrans(
    _STORED, bytes([WriteResult.AGAIN, WriteResult.DONE, WriteResult.AGAIN, WriteResult.AGAIN])
)


class WriteBehind:
    """Decides which pages are written, when, and to which device. On the loop's thread only.

    A batch goes to a device that has room, among those to the one with the fewest frames on their way, among equals to
    the one with the largest free share, so that devices of different sizes fill up together. When all are full, the one
    with the coldest page takes it, so that pages leave the disk in about the order of one large device. A device that
    failed or does not answer is left out for a while as long as another one writes.

    Attributes:
        devices: The devices.
        stores: How much engines store.
        flush_all: All pages are to be written, by a flush to disk.
        at_work: How long writes were in progress.
    """

    def __init__(self, owner: Owner, options: DiskOptions, budget: Budget) -> None:
        header = owner.header()
        self._owner = owner
        self._options = options
        self._budget = budget
        self.devices: list[DeviceWrites] = []
        self._frames = header.frames
        self._frame_bytes = header.frame_bytes
        self._least_ahead = max(1, int(header.frames * options.write_behind))
        self._least_choice = max(self._least_ahead, header.frames // 3)
        self._most_ahead = max(self._least_ahead, header.frames // 2)
        self.stores = StoreRate(self._frame_bytes)
        self.flush_all = False
        self._checked_at = 0.0
        self.at_work = BusyTime()

    def add(self, number: int, folder: str) -> DeviceWrites:
        """Adds a device, which takes no pages before it begins."""
        device = DeviceWrites(self._owner, number, folder, self._options.sync)
        self.devices.append(device)
        return device

    def remove(self, device: DeviceWrites) -> None:
        """Removes a device that has no worker any more."""
        self.devices.remove(device)

    @property
    def in_flight(self) -> int:
        """The number of pages that are being written."""
        return sum(device.in_flight for device in self.devices)

    @property
    def device_bytes(self) -> int:
        """Bytes that the workers of this daemon handed to the file systems."""
        return sum(device.device_bytes for device in self.devices)

    @property
    def trouble(self) -> str:
        """The reason why pages or a sync failed, "" if none did. Pages that another device takes did not fail."""
        writes = [device.write_trouble for device in self.devices if device.ready]
        syncs = (device.sync_trouble for device in self.devices)
        return (next(filter(None, writes), "") if all(writes) else "") or next(filter(None, syncs), "")

    @property
    def refusal(self) -> str:
        """The reason of a page or sync that failed, until the next flush or worker; "" if there was none."""
        return next((device.refusal for device in self.devices if device.refusal), "")

    @property
    def ready(self) -> bool:
        """Whether a device has a worker that accepts commands."""
        return any(device.ready for device in self.devices)

    @property
    def writing(self) -> bool:
        """Whether pages are being written without trouble."""
        return any(device.writing for device in self.devices)

    @property
    def busy(self) -> bool:
        """Whether pages are being written or synced, or wait for a sync."""
        return any(device.busy for device in self.devices)

    def stalled(self) -> str:
        """Returns that a device has not completed a command for long, "" if all have."""
        return next(filter(None, (device.stalled() for device in self.devices)), "")

    def try_again(self) -> None:
        """Forgets earlier errors, so that all pages are tried again."""
        for device in self.devices:
            device.try_again()

    def write_due(self) -> None:
        """Sends the writes that are due. Cheap, for a call after every reservation.

        While a new device is being opened, nothing is written: it may have the pages that would be written to others.
        """
        if any(device.awaited for device in self.devices):
            return
        while any(device.accepts for device in self.devices) and self._due():
            if not any(self._write_batch(device) for device in self._in_order()):
                break
        self._note_work()

    def tidy(self) -> None:
        """Sends due writes, drops and syncs. Called a few times a second."""
        self.write_due()
        for device in self.devices:
            device.tidy()
        self._note_work()
        self._forget_if_done()

    def sync_soon(self) -> None:
        """Syncs each device as soon as no page is being written to it."""
        for device in self.devices:
            device.sync_soon()

    def wrote(self, device: DeviceWrites, report: Wrote) -> None:
        """Handles a completed write command. Raises ProtocolError if there is no such command.

        Pages that the device could not write are tried on another one.
        """
        others = any(other is not device and other.ready and not other.paused for other in self.devices)
        self._budget.spend(device.wrote(report, _TRIED_ELSEWHERE if others else _FINAL))
        self._note_work()
        self.write_due()

    def lost(self, device: DeviceWrites) -> None:
        """Forgets the commands of a device whose worker is gone."""
        device.lost()
        self._note_work()

    def _note_work(self) -> None:
        self.at_work.note(sum(device.commands for device in self.devices))

    def _in_order(self) -> Iterable[DeviceWrites]:
        """Returns the devices that accept a batch, the best place first."""
        working = [device for device in self.devices if device.ready and not device.paused]
        usable = working or self.devices
        return sorted((device for device in usable if device.accepts), key=self._rank)

    @staticmethod
    def _rank(device: DeviceWrites) -> tuple[bool, int, float]:
        room = device.room
        free = room.frames - room.used_frames - room.ordered_frames
        return free <= 0, room.ordered_frames, -free / room.frames if free > 0 else room.coldest

    def _due(self) -> bool:
        if self.flush_all or self._options.write == "through":
            return True
        ahead = self._ahead()
        if self._owner.frames_before_unwritten(ahead) + self.in_flight < ahead:  # a page has one frame at least
            return True
        return self._owner.find_hurries(ahead)

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
        devices = len(self.devices)
        return max(1, min(BATCH_BYTES // self._frame_bytes // devices, self._frames // (SMALLEST_PART * devices)))

    def _write_batch(self, device: DeviceWrites) -> bool:
        """Sends a batch to a device. Returns False if there was nothing to write."""
        batch = WriteBatch(*self._owner.start_writes(self._batch, _BATCH_PAGES, device.number))
        point("write_behind.chosen")
        allowed = self._within_budget(batch)
        drops = self._owner.disk_drops(device.number)
        if len(allowed) or drops:
            device.write(allowed, drops, 0 if self.flush_all else sum(array("Q", allowed.sizes)))
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

    def _forget_if_done(self) -> None:
        """Clears the fault of failed writes once all pages are on disk, because no later write would clear it."""
        now = loop_clock.now()
        waiting = [device for device in self.devices if device.ready and device.waits_for_success]
        if not waiting or now - self._checked_at < _RECHECK_S:
            return
        self._checked_at = now
        left = self._owner.unwritten()
        if not left.pages and not left.skipped:
            for device in waiting:
                device.forget_failures()
