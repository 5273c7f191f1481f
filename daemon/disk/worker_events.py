"""Handles the events of the disk worker: its start, its reports and its end."""

from __future__ import annotations

import asyncio
import logging
import time
from enum import Enum
from typing import TYPE_CHECKING

from pagetier.daemon.config.schema import Config
from pagetier.daemon.config.validate import beyond_its_disk
from pagetier.daemon.disk.backpressure import BackPressure
from pagetier.daemon.disk.flush_to_disk import missing_on_disk
from pagetier.daemon.disk.pending_flushes import PendingFlushes
from pagetier.daemon.disk.publish_status import StatusPublisher
from pagetier.daemon.disk.reads import DiskReads
from pagetier.daemon.disk.status import Standing
from pagetier.daemon.disk.supervisor import Supervisor
from pagetier.daemon.disk.worker_process import CommandSender, no_worker
from pagetier.daemon.disk.write_behind import RULES, STALLED_S, WriteBehind
from pagetier.daemon.disk.write_budget import Budget
from pagetier.shm._core import Owner, UnwrittenPages
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
    StateReport,
    Synced,
    Trust,
    Wrote,
)

if TYPE_CHECKING:
    from pagetier.daemon.disk.inventory import Inventory

log = logging.getLogger("pagetierd.disk")


class _Stage(Enum):
    """How far the worker is with opening the tier and reporting its inventory."""

    STARTED = 0
    OPENED = 1
    COMPLETE = 2


class WorkerEvents:
    """The parts of the disk tier, and the worker's events that it passes on to them. On the loop's thread only.

    Implements Watcher.

    Attributes:
        options: The settings of the tier that are in force.
        send: Sends the worker a command; the command is lost if there is no worker.
        refused: The last worker could not open the tier, or could not be started.
        lost: The pages that the tier lacked when its worker ended during a stop.
    """

    def __init__(self, segments: Segments, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self._owner: Owner = segments.owner
        self._loop = loop
        self.options = config.disk
        self.send: CommandSender = no_worker
        self.supervisor = Supervisor(segments, config.disk, self, loop)
        self.supervisor.populated = config.arena.prefault == "populate"
        self.budget = Budget(config.disk.budget if config.disk.size else 0)
        self.write_behind = WriteBehind(self._owner, config.disk, self.budget)
        self.reads = DiskReads(self._owner, int(config.store.reservation_timeout * 1e9), loop)
        self.flushes = PendingFlushes(loop)
        self.backpressure = BackPressure(self._owner, self.write_behind, config.disk.store_timeout, loop)
        self.bulletin = StatusPublisher(
            self._owner, self.write_behind, self.budget, self._stalled, lambda: self.supervisor.restarts
        )
        self.refused = False
        self.lost: UnwrittenPages | None = None
        if config.disk.size:
            self._contents = _new_inventory(self._owner)  # imports numpy now, while no engine waits for the loop
        self._stage = _Stage.STARTED
        self._unverified = False  # the last worker ended because the next one has to verify the files
        self._began = 0.0
        self._loading: asyncio.Task[None] | None = None

    def started(self, slot: int, send: CommandSender) -> None:
        """Implements Watcher.started()."""
        self.reads.begin(slot, send)
        self.send = send
        self._began = time.monotonic()
        self._stage, self.refused, self._unverified = _Stage.STARTED, False, False
        self._contents = _new_inventory(self._owner)

    def hear(self, report: Report) -> None:
        """Implements Watcher.hear(). Raises ProtocolError for a report that is invalid now."""
        match report:
            case Wrote():
                self.write_behind.wrote(report)
                self.flushes.done(report.number, report.reason)
                self.backpressure.release_ready()
            case HasRead():
                self.reads.has_read(report)
            case Synced():
                self.write_behind.synced(report)
            case StateReport():
                self.bulletin.hear(report.state)
            case _:
                self._hear_opening(report)

    def _hear_opening(self, report: Report) -> None:
        match report, self._stage:
            case Opened(), _Stage.STARTED:
                self._stage = _Stage.OPENED
                self._owner.disk_open(report.room, RULES[self.options.write])
                point("disk.opened")
                self.bulletin.hear(report.state)
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
        """Implements Watcher.ended(): there is no disk tier until the next worker has opened it."""
        if self._loading is not None:
            self._loading.cancel()
        if self.supervisor.leaving:
            self.lost = missing_on_disk(self._owner)
        opens_again = self.supervisor.renewing or self._unverified
        self.refused = self.refused or (self._stage is _Stage.STARTED and not opens_again)
        self._owner.reap(slot)
        point("disk.reaped")
        self._owner.disk_close()
        point("disk.closed")
        self.send = no_worker
        self.write_behind.lost()
        self.flushes.lost()
        self.backpressure.release_ready()
        self.reads.lost()
        point("disk.lost")
        self._report_down(why)

    def _report_down(self, why: str) -> None:
        if self.supervisor.renewing:
            self.bulletin.note(standing=Standing.RESIZING, trouble="")
            log.info("disk tier closed: %s", why, extra=event("disk_resized"))
            return
        self.bulletin.note(standing=Standing.DOWN, trouble=why)
        if not self.supervisor.leaving:
            log.warning("no disk tier: %s; serving from memory only", why, extra=event("disk_down"))

    def failed(self, why: str) -> None:
        """Implements Watcher.failed()."""
        self.refused = True
        self.bulletin.note(standing=Standing.DOWN, trouble=why)
        log.warning("no disk tier: %s; serving from memory only", why, extra=event("disk_down"))

    async def _load(self) -> None:
        """Loads the inventory of the disk into the index, then starts to write and to drop pages."""
        contents, self._contents = self._contents, _new_inventory(self._owner)
        drops = await contents.load_into_index(self.flushes.among)
        self._owner.disk_complete()
        point("disk.known")
        self.flushes.again(self.write_behind.begin(self.send, drops, contents.newest))
        point("disk.begun")
        self._log_open()
        self.bulletin.note(standing=Standing.OPEN, trouble="")  # last: who sees it finds the lines in the log

    def _log_open(self) -> None:
        header = self._owner.header()
        log.info(
            "disk tier in %s: %s, %s of %s in %s frames (cap %s), %s; ready after %.2f s",
            self.options.path,
            counted(header.disk_pages, "page"),
            format_size(header.disk_bytes),
            format_size(header.disk_frames * header.frame_bytes),
            f"{header.disk_frames:,}",
            format_size(self.options.size),
            self.bulletin.report.opened,
            time.monotonic() - self._began,
            extra=event("disk_open", pages=header.disk_pages),
        )
        if too_large := self.too_large():
            log.warning("%s", too_large, extra=event("disk_size"))

    def too_large(self) -> str:
        """Returns a warning if the tier may outgrow its file system, else ""."""
        return beyond_its_disk(self.options, self.bulletin.report.disk_total)

    def _stalled(self) -> str:
        """Returns a sentence if the disk has not answered for long, be it a command or the opening; else ""."""
        waited = time.monotonic() - self._began
        if self._stage is _Stage.STARTED and self.supervisor.has_worker and waited > STALLED_S:
            return f"the disk has not answered for {waited:.0f} s: it is still being opened"
        return self.write_behind.stalled()


def _new_inventory(owner: Owner) -> Inventory:
    """Returns an empty inventory. It imports numpy, which a daemon without a disk does not need."""
    from pagetier.daemon.disk.inventory import Inventory

    return Inventory(owner)
