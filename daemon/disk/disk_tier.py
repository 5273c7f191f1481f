"""The disk tier of one daemon, from start() to stop(): its devices, and what they share."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.child_environ import environ_without_credentials
from pagetier.daemon.config.disk_options import DeviceOptions, DiskOptions
from pagetier.daemon.config.schema import Config
from pagetier.daemon.disk.backpressure import BackPressure
from pagetier.daemon.disk.disk_device import DiskDevice
from pagetier.daemon.disk.disk_flush import DiskFlush, in_memory, log_lost, require_on_disk
from pagetier.daemon.disk.pending_flushes import Answers, FlushedKind, FolderFlushes
from pagetier.daemon.disk.stop_progress import StopProgress
from pagetier.daemon.disk.write_behind import WriteBehind
from pagetier.daemon.disk.write_budget import Budget
from pagetier.daemon.reads.lower_tier_reads import LowerTierReads
from pagetier.daemon.status.disk_report import DiskCounters, DiskReport, Standing, counters_of, summed
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.daemon.workers.worker_link import ChildWorkers
from pagetier.shm._core import DISK_DEVICES, Owner, UnwrittenPages
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import Saved
from pagetier.shm.segments import Segments
from pagetier.shm.units import spell_duration
from pagetier.tiers.worker_protocol import GetState, SaveLookups

log = logging.getLogger("pagetierd.disk")

_REPORT_EVERY_S: Final = 1.0
_PAUSE_S: Final = 0.02
_NO_DISK: Final = "there is no disk tier: set disk.path and disk.size, and restart the daemon"
_MORE_WORKERS: Final = 1  # restarts of the worker that a stop waits for


class DiskTier:
    """The disk tier as the service sees it. On the loop's thread only.

    Without a configured disk it finds no page, delays no store and has no effect. Implements Surroundings.

    Attributes:
        write_behind: Decides which pages are written.
        reads: Sends the reads, and is handed what the workers read.
        backpressure: Delays stores while the disk catches up.
        flushes: What was flushed and may still be in a folder, also in one that a reload has removed.
        budget: Limits the bytes that are written a day, to all devices together.
        workers: Starts the workers of all devices.
        flush: Writes all pages to disk while a client polls.
        stopping: A stop writes what is unwritten. Stores are rejected: it would wait for engines that keep storing.
    """

    def __init__(
        self,
        segments: Segments,
        config: Config,
        reads: LowerTierReads,
        publisher: StatusPublisher,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._segments, self._loop = segments, loop
        self._owner: Owner = segments.owner
        self._populated = config.arena.prefault == "populate"
        self._options = config.disk
        self.budget = Budget(config.disk.budget if config.disk.size else 0)
        self.workers = ChildWorkers(environ_without_credentials())
        self._devices: list[DiskDevice] = []
        self.flushes = FolderFlushes(loop)
        self.write_behind = WriteBehind(self._owner, config.disk, self.budget, self._devices)
        self.reads = reads
        self.backpressure = BackPressure(self._owner, self.write_behind, config.disk.store_timeout, loop)
        self.flush = DiskFlush(self._owner, self.write_behind)
        self._publisher = publisher
        self._report = DiskReport()
        self._removed = Counter[str]()  # what devices counted that a reload has removed
        self.stopping = self._leaving = False
        self._lost: UnwrittenPages | None = None  # what the tier lacked when its first worker ended during a stop
        self._removals: set[asyncio.Task[None]] = set()
        self._reported_at = 0.0
        for device in config.disk.devices:
            self._add(device).supervisor.discards = config.disk.discards

    @property
    def configured(self) -> bool:
        """Whether a disk is configured."""
        return bool(self._options.size)

    @property
    def slots_kept(self) -> int:
        """The number of slots to keep free for workers: one for each device that has none now."""
        return max(0, len(self._devices) - self.reads.workers)

    def start(self) -> None:
        """Starts the workers of the configured devices."""
        for device in self._devices:
            device.start()

    # For the devices.

    @property
    def is_open(self) -> bool:
        """Whether pages can be found on a device."""
        return any(device.status.is_open for device in self._devices)

    def changed(self) -> None:
        """Implements Surroundings.changed()."""
        if reports := [device.status.report for device in self._devices]:
            self._report = summed(reports, self._options.write, self.budget.report(), self._removed)
            self._publisher.note_disk(self._report)

    def worker_ends(self) -> None:
        """Implements Surroundings.worker_ends()."""
        if self._leaving and self._lost is None:
            self._lost = require_on_disk(self._owner)

    def _add(self, options: DeviceOptions) -> DiskDevice:
        taken = {device.number for device in self._devices}
        number = next(number for number in range(DISK_DEVICES) if number not in taken)
        device = DiskDevice(number, options, self, self._segments, self._loop)
        device.supervisor.populated = self._populated
        self._devices.append(device)
        return device

    @property
    def _restarts(self) -> int:
        return sum(device.supervisor.restarts for device in self._devices)

    async def stop(self, timeout: float) -> None:
        """Writes what is unwritten, syncs and ends the worker, all within about `timeout` seconds.

        Waits for a tier that is still being opened, or that the next worker opens again. Logs the pages that are lost.

        The pages are written first, while workers may still be restarted. From `_leaving` on none is: each worker is
        asked to leave after its commands, and syncs. What the tier lacks is counted when the first worker ends, before
        the index forgets its pages (`worker_ends`); afterwards nothing tells which pages were on disk.
        """
        if not self.configured:
            return
        self.stopping = True
        ends = self._loop.time() + timeout
        await self._save_all(timeout, ends)
        point("disk.saved")
        is_open, left = self.is_open, ends - self._loop.time()
        over = "" if left > 0 else f"disk.stop_timeout = {spell_duration(timeout)} is over"
        why = ", ".join(filter(None, (over, self._why_unsaved())))
        self._save_lookups()
        self._leaving = True
        await asyncio.gather(*(self._end_worker(device, left) for device in self._devices))
        lost = (self._lost or require_on_disk(self._owner)) if is_open else in_memory(self._owner)
        log_lost(lost, why or (self.flush.memory_only_reason if lost.skipped else "they were stored during the stop"))

    async def _end_worker(self, device: DiskDevice, left: float) -> None:
        was_open = device.status.is_open
        if not await device.supervisor.stop(max(_PAUSE_S, left) if was_open else _PAUSE_S) and was_open:
            line = "the disk worker of %s did not end within disk.stop_timeout and was killed; what it wrote stays"
            log.warning(line, device.options.path, extra=event("disk_worker_killed"))

    def _save_lookups(self) -> None:
        """Keeps what is known of lookups on a device, because the stop releases the memory that has it."""
        device = next((device for device in self._devices if device.status.is_open), None)
        if device is not None and (lookups := self._owner.save_lookups()):
            device.send(SaveLookups(lookups))

    async def _save_all(self, timeout: float, ends: float) -> None:
        if self._report.standing is Standing.NONE and self._owner.header().pages:
            self.start()  # the stop came before the start
        polls, last_try = 0, self._restarts + _MORE_WORKERS
        with StopProgress(self._publisher, timeout) as progress:
            while self._expected() and self._restarts <= last_try and self._loop.time() < ends:
                is_open = self.is_open
                if is_open and progress.show(self.save(polls)).synced:
                    return
                polls = polls + 1 if is_open else 0
                self.tidy()
                await loop_clock.pause(_PAUSE_S)

    def _expected(self) -> bool:
        """Returns whether the tier is open, or soon will be for unwritten pages."""
        expected = any(device.expected for device in self._devices)
        return self.is_open or (expected and self._owner.header().pages > 0)

    def _why_unsaved(self) -> str:
        if not self.is_open:
            return f"the disk tier is not open ({self._trouble})"
        return self.write_behind.stalled() or self.write_behind.trouble

    @property
    def _trouble(self) -> str:
        """The reason why a configured tier is not open."""
        return self._report.trouble or "the disk tier is being opened"

    def follow(self, options: DiskOptions) -> None:
        """Adds, removes and resizes devices; a device is known by its folder.

        A device that is resized has no pages until a new worker has opened it, and then those that fit. The pages of
        a removed device are misses; its files stay where they are.
        """
        self._options = options
        wanted = {device.path: device for device in options.devices}
        for device in self._staying:
            if device.options.path not in wanted:
                self._remove(device)
            elif wanted[device.options.path] != device.options:
                device.resize(wanted[device.options.path])
        self._add_missing()

    @property
    def _staying(self) -> list[DiskDevice]:
        return [device for device in self._devices if not device.supervisor.leaving]

    def _add_missing(self) -> None:
        """Adds the devices that are configured and not there, as far as numbers are free."""
        there = {device.options.path for device in self._staying}
        for new in self._options.devices:
            if new.path not in there and len(self._devices) < DISK_DEVICES and not self._leaving:
                log.info("disk tier in %s: added", new.path, extra=event("disk_device_added"))
                self._add(new).start()

    def _remove(self, device: DiskDevice) -> None:
        """Ends the worker of a device. Until it has ended, the device keeps its number.

        A hung disk may keep the worker alive for long. As long as it lives, it may write into frames that it was
        granted, so the number goes to no other device. The tier does not wait for it (`DiskDevice.close`).
        """
        log.info("disk tier in %s: removed, its files stay", device.options.path, extra=event("disk_device_removed"))
        task = self._loop.create_task(self._end(device))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    async def _end(self, device: DiskDevice) -> None:
        await device.supervisor.retire(device.close)
        self._devices.remove(device)
        self._removed += counters_of(device.status.report)
        self._add_missing()
        self.changed()

    def abandon(self) -> None:
        """Kills the workers: the next daemon starts its own."""
        for device in self._devices:
            device.supervisor.abandon()

    # Requests of the service.

    def tidy(self) -> None:
        """Sends due writes, drops and syncs, and publishes the status. Called a few times a second."""
        if not self.configured:
            return
        self.flush.end_when_due()
        self.write_behind.tidy()
        now = self._loop.time()
        if now - self._reported_at > _REPORT_EVERY_S:
            self._reported_at = now
            for device in self._devices:
                device.send(GetState())
                device.note()

    def flushed(self, digests: Collection[bytes] | None, then: Callable[[str], None], wanted: str = "") -> None:
        """Drops flushed pages, which have left the index, from disk.

        Args:
            digests: The namespaces of the pages; None for all namespaces.
            then: Called once, soon: with "" when the pages have left the disk, else with the reason why they may still
                be there. This daemon then drops them as soon as the disk is back, and does not find them before.
            wanted: What selects the namespaces, also those that a device has not reported yet; "": only the digests.
        """
        self._drop(lambda flushes: flushes.namespaces, digests, then, wanted)

    def forgotten(self, keys: bytes, then: Callable[[str], None]) -> None:
        """Drops single pages, which have left the index, from disk, as flushed() drops those of namespaces."""
        self._drop(lambda flushes: flushes.pages, PAGE_KEYS.split(keys), then, "")

    def _drop(self, of: FlushedKind, what: Collection[bytes] | None, then: Callable[[str], None], wanted: str) -> None:
        # Of two devices in a folder, the first is being removed, and the second cannot open the folder before it is.
        newest = {device.options.path: device for device in self._devices}
        answers = Answers(len(newest), then)
        for folder, device in newest.items():
            device.drop_flushed(of(device.flushes), what, answers.of(folder), wanted)
        for removed in self.flushes.without(newest):
            of(removed).keep(what, wanted)

    def save(self, number: int) -> Saved:
        """Returns the progress of writing all pages to disk. The daemon continues while a client polls."""
        if self.is_open:
            return self.flush.ask(number)
        return Saved(number, 0, 0, synced=False, trouble=self._trouble if self.configured else _NO_DISK)

    def work(self) -> DiskCounters:
        """Returns the counters for the metrics."""
        writes, reads = self.write_behind, self.reads
        return DiskCounters(self._report, writes.in_flight, writes.at_work.seconds, reads.at_work.seconds)

    def too_large(self) -> str:
        """Returns a warning if a device may outgrow its file system, else ""."""
        return next(filter(None, (device.status.too_large(device.options) for device in self._devices)), "")
