"""One device of the disk tier: its worker, what is written to it, and what the worker's reports and end mean.

The life of a device follows its worker's:

1. The supervisor starts a worker (`started`), which opens the files and reports their inventory (`hear`). It reads the
   pages that it has reported; when all are in the index, the device takes writes and drops (`_complete`, `begin`).
2. WriteBehind chooses pages, the device sends them (`write`), and the worker reports what it wrote (`hear`). The steps
   and their reasons are described in write_behind.py. LowerTierReads sends the reads.
3. The worker ends (`ended`): the pages on the device leave the index. The files keep them, and the next worker's
   inventory brings them back. So a death needs no reconciliation, and no order of events can bring back bytes of
   another page: the index knows of a page on disk only by a report of the worker that runs.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Collection
from typing import Final

from pagetier.daemon.common import loop_clock
from pagetier.daemon.config.disk_capacity import frames_of_device
from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.disk.commands_in_flight import STALLED_S, CommandsInFlight, unanswered
from pagetier.daemon.disk.device_health import DeviceHealth
from pagetier.daemon.disk.device_opening import DeviceOpening, OpeningStage, import_ahead, stamp_offset
from pagetier.daemon.disk.device_status import DeviceStatus
from pagetier.daemon.disk.pending_flushes import AWAY, PendingFlushes
from pagetier.daemon.disk.surroundings import Surroundings
from pagetier.daemon.status.disk_report import Standing
from pagetier.daemon.workers.supervisor import Supervisor
from pagetier.daemon.workers.worker_process import CommandSender, no_worker
from pagetier.shm._core import Owner
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import Space
from pagetier.shm.segments import Segments
from pagetier.tiers.worker_protocol import Complete, HasRead, Opened, Report, StateReport, Sync, Synced, Write, Wrote

log = logging.getLogger("pagetierd.disk")

_IN_FLIGHT: Final = 2
_MOST_DROPS: Final = 1 << 20  # in one command, because the size of a message is limited


class DiskDevice:
    """One device, the WorkerHandler of its worker. On the loop's thread only.

    Attributes:
        number: Its number in the index.
        options: The settings that are in force.
        status: What is published of the device.
        send: Sends the worker a command; the command is lost if there is no worker.
        ready: Whether the worker accepts writes and drops.
        commands: The writes, drops and the sync that are in progress.
        health: Whether the device writes and syncs.
        flushes: What was flushed and may still be in its folder.
        device_bytes: Bytes that the workers of this daemon handed to the file system.
    """

    def __init__(
        self, number: int, options: DeviceOptions, tier: Surroundings, segments: Segments, loop: AbstractEventLoop
    ) -> None:
        self._owner: Owner = segments.owner
        self._tier = tier
        self.number = number
        self.options = options
        self.supervisor = Supervisor(segments, options, self, loop, tier.workers)
        self.send: CommandSender = no_worker
        self.ready = False
        self.commands = CommandsInFlight()
        self.health = DeviceHealth(str(options.path))
        self.flushes = tier.flushes.of(options.path)
        self.device_bytes = 0
        self.status = DeviceStatus(number, options, self._owner, tier)
        self._opening = DeviceOpening(self._owner, number, self.flushes)
        self._awaited_until = loop_clock.now() + STALLED_S
        self.stamp_offset = 0  # stamp of a page on disk minus its tick in memory

    @property
    def expected(self) -> bool:
        """Whether the device is open or soon will be."""
        coming = self.supervisor.has_worker or not self._opening.refused
        return self.status.is_open or (self.supervisor.goes_on and coming)

    @property
    def awaited(self) -> bool:
        """Whether the device has not said yet which pages it has, and soon will."""
        return self._awaited_until > 0.0 and loop_clock.now() < self._awaited_until  # asked for each store

    @property
    def accepts(self) -> bool:
        """Whether another batch may be sent to the device. A worker that was asked to leave ignores it."""
        leaves = self.supervisor.leaving or self.supervisor.renewing
        return self.ready and not leaves and len(self.commands) < _IN_FLIGHT

    @property
    def paused(self) -> bool:
        """Whether pages should rather go to other devices, because this one failed to write or does not answer."""
        return self.health.paused or bool(self.commands.stalled())

    @property
    def writing(self) -> bool:
        """Whether pages are being written without trouble."""
        return bool(self.commands) and not self.health.trouble and not self.commands.stalled()

    def start(self) -> None:
        """Starts the worker."""
        frames = frames_of_device(self.options, self._owner.header().frame_bytes)
        self.note(standing=Standing.STARTING, cap=self.options.size, room_frames=frames)
        self.supervisor.start()
        get_running_loop().call_soon(import_ahead)  # the worker has its command then

    def resize(self, options: DeviceOptions) -> None:
        """Changes the size: a new worker replaces the current one and drops pages that do not fit.

        The current worker completes its commands and ends (`ended`), so its pages leave the index. Only the next worker
        changes the files, and reports what is left of them.
        """
        self.options = options
        self.supervisor.renew(options)

    def started(self, slot: int, send: CommandSender) -> None:
        """Implements WorkerHandler.started()."""
        self._tier.reads.begin(self.number, slot, send)
        self.send = send
        self._opening = DeviceOpening(self._owner, self.number, self.flushes)

    def hear(self, report: Report) -> None:
        """Implements WorkerHandler.hear(). Raises ProtocolError for a report that is invalid now."""
        match report:
            case Wrote():
                self._wrote(report)
            case HasRead():
                self._tier.reads.has_read_from_disk(self.number, report)
            case Synced():
                self.commands.end_sync()
                self.health.synced(report.reason)
            case StateReport():
                self.status.note_state(report.state)
            case _:
                self._hear_opening(report)

    def _hear_opening(self, report: Report) -> None:
        self._opening.hear(report, self._tier.write_behind.rule)
        match report:
            case Opened():
                self.status.note_opened(report.state)
            case Complete():
                self._complete()

    def _complete(self) -> None:
        """Starts to write and to drop pages: the inventory of the device is in the index."""
        drops, newest = self._opening.complete()
        self.flushes.again(self.begin(drops, newest))
        point("disk.begun")
        self.status.log_open(self.options, self._opening.seconds)
        self.note(standing=Standing.OPEN, trouble="")  # last: its lines were given to the log, which a thread writes

    def begin(self, drops: bytes, newest: int = 0) -> int:
        """Starts to send commands to a new worker. Pages that the previous worker did not drop are dropped again.

        Args:
            drops: The keys of pages to drop before anything else, beside those that the index lists.
            newest: The latest stamp on the device.

        Returns:
            The number of the command that drops the last of these keys; 0 if there are none.
        """
        self.stamp_offset = self.stamp_offset or stamp_offset(newest)
        self._owner.disk_drop(self.commands.lost_drops, self.number)
        self.commands.lost_drops = b""
        self.ready, self._awaited_until = True, 0.0
        self.health.try_again()
        drops += self._owner.disk_drops(self.number)
        return self._drop(drops) if drops else 0

    def ended(self, slot: int, why: str) -> None:
        """Implements WorkerHandler.ended(): the device has no pages until the next worker has opened it.

        The order matters. The worker's pins and grants return first, so that pages whose frames it held are complete or
        gone. Then the index forgets the pages of the device: a page only on it is a miss, and a page that was being
        written counts as unwritten again, whether or not the dead worker committed it. Only then are the requests
        answered that waited for the worker, since an engine that hears of it may ask again at once.
        """
        if not self.supervisor.renewing:
            self._opening.give_up()
        self._owner.reap(slot)
        point("disk.reaped")
        self.close(why)
        self._tier.reads.lost(self.number)
        point("disk.lost")

    def close(self, why: str) -> None:
        """Takes the device out of the index: its worker has ended, or hangs, is removed and not waited for."""
        self._tier.worker_ends()
        self._owner.disk_close(self.number)
        point("disk.closed")
        self.send, self.ready, self._awaited_until = no_worker, False, 0.0
        self.commands.lose()
        self.health.forget()  # the reason why there is no worker matters more than failed writes
        self._tier.write_behind.note_work()
        self.flushes.lost()
        self._tier.backpressure.serve_ready()
        self._report_down(why)

    def failed(self, why: str) -> None:
        """Implements WorkerHandler.failed()."""
        self._opening.refused = True
        self.note(standing=Standing.DOWN, trouble=why)
        self.status.log_down(why)

    def write(self, pages: bytes, spaces: dict[int, Space], drops: bytes, paid: int) -> None:
        """Sends a batch: rows of PAGES_TO_WRITE, their namespaces, and the bytes that the budget was charged already.

        The drops go with it, because the batch was given the room of the pages that it evicted: the worker drops first.
        """
        self._put(Write(next(self.flushes.numbers), drops, pages, spaces), paid)
        point("write_behind.sent")

    def _wrote(self, report: Wrote) -> None:
        """Handles a completed write command. Raises ProtocolError if there is no such command."""
        write = self.commands.end(report)
        point("write_behind.reported")
        self.device_bytes += report.disk_bytes
        self.health.wrote(report, write.drops)  # before more is sent: a device that failed is left out
        self._tier.write_behind.wrote(self.number, write, report)
        self.flushes.done(report.number, report.reason if write.drops else "")
        self._tier.backpressure.serve_ready()  # last: pages that were just written may leave for a store

    def tidy(self, sync_s: float) -> None:
        """Sends due drops, and a sync if none was sent for `sync_s` seconds. Called a few times a second."""
        if not self.ready:
            return
        if drops := self._owner.disk_drops(self.number):
            self._drop(drops)
        if self.commands.sync_due(sync_s):
            self._sync()

    def sync_soon(self) -> None:
        """Syncs as soon as no page is being written."""
        if self.ready and self.commands.unsynced and not self.commands and not self.commands.syncing:
            self._sync()

    def _sync(self) -> None:
        self.commands.begin_sync()
        self.send(Sync(next(self.flushes.numbers)))

    def _drop(self, drops: bytes) -> int:
        """Asks the worker to drop these keys and returns the number of the last command."""
        number = 0
        for part in PAGE_KEYS.batches(drops, _MOST_DROPS):
            number = next(self.flushes.numbers)
            self._put(Write(number, part), 0)
            point("write_behind.dropped")
        return number

    def _put(self, command: Write, paid: int) -> None:
        self.commands.add(command, paid)
        self.send(command)

    def drop_flushed(
        self, flushes: PendingFlushes, digests: Collection[bytes] | None, then: Callable[[str], None], wanted: str = ""
    ) -> None:
        """Drops flushed pages from the device, or remembers them in `flushes` until it is back. See DiskTier.flushed().

        The index listed their keys as drops. The last write may have taken the keys along already: then the newest
        command that drops pages completes the flush.
        """
        if not self.ready:
            flushes.keep(digests, wanted)
            then(AWAY)
            return
        drops = self._owner.disk_drops(self.number)
        if command := self._drop(drops) if drops else self.commands.last_drop:
            flushes.wait(digests, command, then)
        else:
            then("")

    def note(self, **news: object) -> None:
        """Publishes the status, with the fields in `news`."""
        reading_s = self._tier.reads.oldest(self.number, loop_clock.now())[1]
        opening = self._opening.stalled() if self.supervisor.has_worker else ""
        stalled = opening or self.commands.stalled() or unanswered(reading_s)
        if stalled or (self.send is not no_worker and self._opening.stage is not OpeningStage.STARTED):
            self.health.answers.report(stalled)  # without a worker there is no answer, and no fault either
        expected = 0 if self.send is no_worker else self._opening.expected_pages
        news |= {"expected_pages": expected, "device_bytes": self.device_bytes, "restarts": self.supervisor.restarts}
        self.status.note(stalled or self.health.trouble, **news)

    def _report_down(self, why: str) -> None:
        if self.supervisor.renewing and not self.supervisor.leaving:
            self.note(standing=Standing.RESIZING, trouble="")
            log.info("disk tier closed: %s", why, extra=event("disk_resized"))
            return
        self.note(standing=Standing.DOWN, trouble=why)
        if not self.supervisor.leaving:
            self.status.log_down(why)
