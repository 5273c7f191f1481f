"""One device of the disk tier: its worker, and what the worker's start, reports and end mean for the index."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec

from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.log_throttle import FaultLog
from pagetier.daemon.config.capacity import frames_of_device
from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.config.validation import beyond_its_disk
from pagetier.daemon.disk.device_writes import STALLED_S
from pagetier.daemon.disk.pending_flushes import DeviceFlushes, PendingFlushes
from pagetier.daemon.disk.reads import DiskReads
from pagetier.daemon.disk.saved_lookups import restore_lookups
from pagetier.daemon.disk.write_behind import WriteBehind
from pagetier.daemon.status.disk_report import DeviceReport, Standing, with_state
from pagetier.daemon.workers.supervisor import Supervisor
from pagetier.daemon.workers.worker_process import CommandSender, no_worker
from pagetier.shm._core import KEY_BYTES, Owner, WriteRule
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.protocol import ProtocolError
from pagetier.shm.segments import Segments
from pagetier.shm.units import counted, format_size
from pagetier.tiers.worker_protocol import (
    Complete,
    HasRead,
    InventoryPart,
    Opened,
    OpenFailed,
    Report,
    SavedLookups,
    StateReport,
    Synced,
    Trust,
    Wrote,
)

if TYPE_CHECKING:
    from pagetier.daemon.disk.inventory import Inventory

log = logging.getLogger("pagetierd.disk")


class _Stage(Enum):
    """How far the worker is with opening the device and reporting its inventory."""

    STARTED = 0
    OPENED = 1
    COMPLETE = 2


class SharedTier(Protocol):
    """What the devices of a tier share. See DiskTier."""

    write_behind: WriteBehind
    reads: DiskReads

    @property
    def rule(self) -> WriteRule:
        """The rule by which pages are written now."""

    def changed(self) -> None:
        """Publishes the status, because a device has changed."""

    def ends(self) -> None:
        """Takes note that the worker of a device ended, before the index forgets its pages."""

    def release_stores(self) -> None:
        """Releases the stores that waited for the disk and need not any more."""

    def others_open(self, device: DiskDevice) -> bool:
        """Returns whether pages can be found on another device."""


class DiskDevice:
    """One device, a Watcher of its worker. On the loop's thread only.

    Attributes:
        number: Its number in the index.
        options: The settings that are in force.
        report: The status, as it was noted last.
        send: Sends the worker a command; the command is lost if there is no worker.
        flushes: What was flushed and may still be on the device.
        refused: The last worker could not open the device, or could not be started.
    """

    def __init__(
        self, number: int, options: DeviceOptions, tier: SharedTier, segments: Segments, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._owner: Owner = segments.owner
        self._loop = loop
        self._tier = tier
        self.number = number
        self.options = options
        self.send: CommandSender = no_worker
        self.supervisor = Supervisor(segments, options, self, loop)
        self.writes = tier.write_behind.add(number, str(options.path))
        self.flushes = DeviceFlushes(loop)
        self.refused = False
        self._contents = _new_inventory(self._owner, number)  # imports numpy now, while no engine waits for the loop
        self._stage, self._began = _Stage.STARTED, 0.0
        self._unverified = False  # the last worker ended because the next one has to verify the files
        self._loading: asyncio.Task[None] | None = None
        name = str(options.path)
        self._faults = FaultLog(name.replace("%", "%%") + ": %s", f"{name}: the disk answers again")
        self.report = DeviceReport(folder=str(options.path))

    @property
    def is_open(self) -> bool:
        """Whether pages can be found on the device."""
        return self.report.standing is Standing.OPEN

    @property
    def expected(self) -> bool:
        """Whether the device is open or soon will be."""
        coming = self.supervisor.has_worker or not self.refused
        return self.is_open or (self.supervisor.goes_on and coming)

    def start(self) -> None:
        """Starts the worker."""
        frames = frames_of_device(self.options, self._owner.header().frame_bytes)
        self.note(standing=Standing.STARTING, cap=self.options.size, room_frames=frames)
        self.supervisor.start()

    def resize(self, options: DeviceOptions) -> None:
        """Changes the size: a new worker replaces the current one and drops pages that do not fit."""
        self.options = options
        self.supervisor.renew(options)

    def flushed(self, digests: Collection[bytes] | None, then: Callable[[str], None]) -> None:
        """Drops flushed pages from the device. See DiskTier.flushed()."""
        self._drop(self.flushes.namespaces, digests, then)

    def forgotten(self, keys: bytes, then: Callable[[str], None]) -> None:
        """Drops single pages from the device. See DiskTier.forgotten()."""
        self._drop(self.flushes.pages, [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)], then)

    def _drop(self, flushes: PendingFlushes, digests: Collection[bytes] | None, then: Callable[[str], None]) -> None:
        if not self.writes.ready:
            flushes.keep(digests, then)
        elif command := self.writes.drop_now():
            flushes.wait(digests, command, then)
        else:
            then("")

    def note(self, **news: object) -> None:
        """Takes over the fields in `news` and the current values of the others, and publishes them."""
        stalled = self._stalled()
        if stalled or (self.send is not no_worker and self._stage is not _Stage.STARTED):  # no worker, no answer
            self._faults.report(stalled)
        known = self.report.trouble if not self.is_open and "standing" not in news else ""
        room = self.writes.room
        news |= {
            "trouble": news.get("trouble") or stalled or self.writes.trouble or known,
            "device_bytes": self.writes.device_bytes,
            "restarts": self.supervisor.restarts,
            "used_frames": room.used_frames,
            "pages": room.pages,
            "bytes": room.bytes,
        }
        self.report = msgspec.structs.replace(self.report, **news)
        self._tier.changed()

    def started(self, slot: int, send: CommandSender) -> None:
        """Implements Watcher.started()."""
        self._tier.reads.begin(self.number, slot, send)
        self.send = send
        self._began = loop_clock.now()
        self._stage, self.refused, self._unverified = _Stage.STARTED, False, False
        self._contents = _new_inventory(self._owner, self.number)

    def hear(self, report: Report) -> None:
        """Implements Watcher.hear(). Raises ProtocolError for a report that is invalid now."""
        match report:
            case Wrote():
                self._tier.write_behind.wrote(self.writes, report)
                self.flushes.done(report.number, report.reason)
                self._tier.release_stores()
            case HasRead():
                self._tier.reads.has_read(self.number, report)
            case Synced():
                self.writes.synced(report)
            case StateReport():
                self.report = with_state(self.report, report.state)
            case _:
                self._hear_opening(report)

    def _hear_opening(self, report: Report) -> None:
        match report, self._stage:
            case Opened(), _Stage.STARTED:
                self._stage = _Stage.OPENED
                self._owner.disk_open(report.capacity, self._tier.rule, self.number)
                point("disk.opened")
                self.report = with_state(self.report, report.state)
            case SavedLookups(), _Stage.OPENED:
                restore_lookups(self._owner, report.data)
            case InventoryPart(), _Stage.OPENED:
                self._contents.add(report)
            case Complete(), _Stage.OPENED:
                self._stage = _Stage.COMPLETE
                self._loading = self._loop.create_task(self._load())
            case OpenFailed(), _:  # the process keeps the reason for the supervisor, and the end of the worker follows
                self._unverified = report.trust is not Trust.AS_LEFT  # the next worker verifies the files, then opens
                self.refused = self._stage is not _Stage.COMPLETE and not self._unverified
            case _:
                raise ProtocolError(f"{type(report).__name__} at the wrong time")

    def ended(self, slot: int, why: str) -> None:
        """Implements Watcher.ended(): the device has no pages until the next worker has opened it."""
        if self._loading is not None:
            self._loading.cancel()
        self._tier.ends()
        self.refused |= self._stage is _Stage.STARTED and not (self.supervisor.renewing or self._unverified)
        self._owner.reap(slot)
        point("disk.reaped")
        self._owner.disk_close(self.number)
        point("disk.closed")
        self.send = no_worker
        self._tier.write_behind.lost(self.writes)
        self.flushes.lost()
        self._tier.release_stores()
        self._tier.reads.lost(self.number)
        point("disk.lost")
        self._report_down(why)

    def _report_down(self, why: str) -> None:
        if self.supervisor.renewing:
            self.note(standing=Standing.RESIZING, trouble="")
            log.info("disk tier closed: %s", why, extra=event("disk_resized"))
            return
        self.note(standing=Standing.DOWN, trouble=why)
        if not self.supervisor.leaving:
            self._log_down(why)

    def _log_down(self, why: str) -> None:
        if self._tier.others_open(self):
            line = "the disk tier in %s is down: %s; its pages are misses until it is back"
            log.warning(line, self.options.path, why, extra=event("disk_device_down"))
        else:
            log.warning("no disk tier: %s; serving from memory only", why, extra=event("disk_down"))

    def failed(self, why: str) -> None:
        """Implements Watcher.failed()."""
        self.refused = True
        self.note(standing=Standing.DOWN, trouble=why)
        self._log_down(why)

    async def _load(self) -> None:
        """Loads the inventory of the device into the index, then starts to write and to drop pages."""
        contents, self._contents = self._contents, _new_inventory(self._owner, self.number)
        drops = await contents.load_into_index(self.flushes.namespaces.among, self.flushes.pages.digests)
        self._owner.disk_complete(self.number)
        point("disk.known")
        self.flushes.again(self.writes.begin(self.send, drops, contents.newest))
        point("disk.begun")
        self._log_open()
        self.note(standing=Standing.OPEN, trouble="")  # last: who sees it finds the lines in the log

    def _log_open(self) -> None:
        room, frame = self.writes.room, self._owner.header().frame_bytes
        log.info(
            "disk tier in %s: %s, %s of %s in %s frames (cap %s), %s; ready after %.2f s",
            self.options.path,
            counted(room.pages, "page"),
            format_size(room.bytes),
            format_size(room.frames * frame),
            f"{room.frames:,}",
            format_size(self.options.size),
            self.report.opened,
            loop_clock.now() - self._began,
            extra=event("disk_open", pages=room.pages),
        )
        if too_large := self.too_large():
            log.warning("%s", too_large, extra=event("disk_size"))

    def too_large(self) -> str:
        """Returns a warning if the device may outgrow its file system, else ""."""
        return beyond_its_disk(self.options, self.report.disk_total)

    def _stalled(self) -> str:
        """Returns a sentence if the device has not answered for long, be it a command or the opening; else ""."""
        waited = loop_clock.now() - self._began
        if self._stage is _Stage.STARTED and self.supervisor.has_worker and waited > STALLED_S:
            return f"the disk has not answered for {waited:.0f} s: it is still being opened"
        return self.writes.stalled()


def _new_inventory(owner: Owner, device: int) -> Inventory:
    """Returns an empty inventory. It imports numpy, which a daemon without a disk does not need."""
    from pagetier.daemon.disk.inventory import Inventory

    return Inventory(owner, device)
