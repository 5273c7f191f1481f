"""The disk tier of one daemon, from start() to stop()."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from pagetier.daemon.common.eviction_report import EvictionReport
from pagetier.daemon.common.huge_page_report import HugePageReport
from pagetier.daemon.config.schema import Config
from pagetier.daemon.disk.flush_to_disk import DiskFlush, in_memory, log_lost, missing_on_disk
from pagetier.daemon.disk.show_stop import StopProgress
from pagetier.daemon.disk.status import DiskCounters, HintReport, PhaseProgress, Standing
from pagetier.daemon.disk.worker_events import WorkerEvents
from pagetier.shm._core import Owner
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import Saved
from pagetier.shm.segments import Segments
from pagetier.shm.units import spell_duration
from pagetier.tiers.capacity import frames_under
from pagetier.tiers.worker_protocol import GetState

_REPORT_EVERY_S: Final = 1.0
_PAUSE_S: Final = 0.02
_MORE_WORKERS: Final = 1  # restarts of the worker that a stop waits for


class DiskTier:
    """The disk tier as the service sees it. On the loop's thread only.

    Without a configured disk it finds no page, delays no store and has no effect.

    Attributes:
        write_behind: Decides which pages are written.
        reads: Reads pages from disk for engines.
        backpressure: Delays stores while the disk catches up.
        budget: Limits the bytes that are written a day.
        flush: Writes all pages to disk while a client polls.
    """

    def __init__(self, segments: Segments, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self._owner: Owner = segments.owner
        self._loop = loop
        self._events = events = WorkerEvents(segments, config, loop)
        self._supervisor = events.supervisor
        self._flushes = events.flushes
        self._bulletin = events.bulletin
        self.write_behind = events.write_behind
        self.reads = events.reads
        self.backpressure = events.backpressure
        self.budget = events.budget
        self.flush = DiskFlush(self._owner, config.disk, self.write_behind, loop)
        self._reported_at = 0.0

    @property
    def configured(self) -> bool:
        """Whether a disk is configured."""
        return self._events.options.size > 0

    @property
    def slots_kept(self) -> int:
        """The number of slots to keep free for the worker: 1 if a disk is configured and has no worker now."""
        return int(self.configured and self.reads.slot is None)

    def start(self) -> None:
        """Starts the worker if a disk is configured."""
        if not self.configured:
            return
        options = self._events.options
        frames = frames_under(options.store, options.size, options.environments, self._owner.header().frame_bytes)
        self._bulletin.note(
            standing=Standing.STARTING,
            folder=str(options.path),
            write=options.write,
            cap=options.size,
            room_frames=frames,
        )
        self._supervisor.start()

    async def stop(self, timeout: float) -> None:
        """Writes what is unwritten, syncs and ends the worker, all within about `timeout` seconds.

        Waits for a tier that is still being opened, or that the next worker opens again. Logs the pages that are lost.
        """
        if not self.configured:
            return
        ends = self._loop.time() + timeout
        await self._save_all(ends)
        point("disk.saved")
        is_open, left = self._bulletin.is_open, ends - self._loop.time()
        over = "" if left > 0 else f"disk.stop_timeout = {spell_duration(timeout)} is over"
        why = ", ".join(filter(None, (over, self._why_unsaved())))
        await self._supervisor.stop(max(_PAUSE_S, left) if is_open else _PAUSE_S)
        lost = (self._events.lost or missing_on_disk(self._owner)) if is_open else in_memory(self._owner)
        log_lost(lost, why or (self.flush.memory_only_reason if lost.skipped else "they were stored during the stop"))

    async def _save_all(self, ends: float) -> None:
        if self._bulletin.standing is Standing.NONE and self._owner.header().pages:
            self.start()  # the stop came before the start
        polls, last_try = 0, self._supervisor.restarts + _MORE_WORKERS
        with StopProgress(self._bulletin, ends - self._loop.time()) as progress:
            while self._expected() and self._supervisor.restarts <= last_try and self._loop.time() < ends:
                is_open = self._bulletin.is_open
                if is_open and progress.show(self.save(polls)).synced:
                    return
                polls = polls + 1 if is_open else 0
                self.tidy()
                await asyncio.sleep(_PAUSE_S)

    def _expected(self) -> bool:
        """Returns whether the tier is open, or soon will be for unwritten pages."""
        if self._bulletin.is_open:
            return True
        coming = self._supervisor.has_worker or not self._events.refused
        return self._supervisor.goes_on and coming and self._owner.header().pages > 0

    def _why_unsaved(self) -> str:
        if not self._bulletin.is_open:
            return f"the disk tier is not open ({self._bulletin.trouble})"
        return self.write_behind.stalled() or self.write_behind.trouble

    @property
    def progress(self) -> PhaseProgress:
        """The phase of the daemon that was published last."""
        return self._bulletin.progress

    def enter(self, progress: PhaseProgress) -> None:
        """Publishes the phase of the daemon, with or without a configured disk."""
        self._bulletin.enter(progress)

    def publish_eviction(self, eviction: EvictionReport) -> None:
        """Publishes the order of eviction, with or without a configured disk."""
        self._bulletin.evicts(eviction)

    def note_hints(self, hints: HintReport) -> None:
        """Publishes the counters of hints, with or without a configured disk."""
        self._bulletin.note_hints(hints)

    @property
    def huge_pages(self) -> HugePageReport:
        """How much of the segments is in huge pages, as published last."""
        return self._bulletin.huge_pages

    def note_huge_pages(self, huge_pages: HugePageReport) -> None:
        """Publishes how much of the segments is in huge pages, with or without a configured disk."""
        self._bulletin.note_huge_pages(huge_pages)

    def resize(self, size: int) -> None:
        """Changes the size of the tier: a new worker replaces the current one and drops pages that do not fit.

        Until it has opened the tier, no page is found on disk.
        """
        if size != self._events.options.size:
            self._events.options = msgspec.structs.replace(self._events.options, size=size)
            self._supervisor.renew(self._events.options)

    def abandon(self) -> None:
        """Kills the worker: the next daemon starts its own."""
        self._supervisor.abandon()

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
            self._events.send(GetState())
            self._bulletin.note()

    def flushed(self, digests: Collection[bytes] | None, then: Callable[[str], None]) -> None:
        """Drops flushed pages, which have left the index, from disk.

        Args:
            digests: The namespaces of the pages; None for all namespaces.
            then: Called once, soon: with "" when the pages have left the disk, else with the reason why they may still
                be there. This daemon then drops them as soon as the disk is back, and does not find them before.
        """
        if self.configured and not self.write_behind.ready:
            self._flushes.keep(digests, then)
        elif self.configured and (command := self.write_behind.drop_now()):
            self._flushes.wait(digests, command, then)
        else:
            then("")

    def save(self, number: int) -> Saved:
        """Returns the progress of writing all pages to disk. The daemon continues while a client polls."""
        if not self._bulletin.is_open:
            why = (
                "there is no disk tier: set disk.path and disk.size" if not self.configured else self._bulletin.trouble
            )
            return Saved(number, 0, 0, synced=False, trouble=why)
        return self.flush.ask(number)

    def work(self) -> DiskCounters:
        """Returns the counters for the metrics."""
        write_behind = self.write_behind
        return DiskCounters(
            self._bulletin.report, write_behind.in_flight, write_behind.at_work.seconds, self.reads.at_work.seconds
        )

    def too_large(self) -> str:
        """Returns a warning if the tier may outgrow its file system, else ""."""
        return self._events.too_large()
