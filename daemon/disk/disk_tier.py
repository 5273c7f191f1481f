"""The disk tier of one daemon, from start() to stop()."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from enum import Enum
from typing import Final

import msgspec

from pagetier.daemon.config.schema import Config
from pagetier.daemon.config.validate import beyond_its_disk
from pagetier.daemon.disk.backpressure import BackPressure
from pagetier.daemon.disk.flush_to_disk import Alone, Saving, alone, in_memory, tell_lost
from pagetier.daemon.disk.inventory import Contents
from pagetier.daemon.disk.pending_flushes import Flushes
from pagetier.daemon.disk.publish_status import Bulletin
from pagetier.daemon.disk.reads import Fetches
from pagetier.daemon.disk.status import DiskCounters, Standing
from pagetier.daemon.disk.supervisor import Supervisor
from pagetier.daemon.disk.write_behind import RULES, STALLED_S, WriteBehind
from pagetier.daemon.disk.write_budget import Budget
from pagetier.shm._core import Owner
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.protocol import Fetch, Fetched, ProtocolError, Saved
from pagetier.shm.segments import Segments
from pagetier.shm.units import format_size, spell_duration
from pagetier.tiers.worker_protocol import (
    Complete,
    Fails,
    HasRead,
    Holds,
    Opened,
    Report,
    Synced,
    Tell,
    Tells,
    Trust,
    Wrote,
)

log = logging.getLogger("pagetierd.disk")

_TELL_EVERY_S: Final = 1.0
_PAUSE_S: Final = 0.02
_TRIES: Final = 1  # more workers than are there, or on their way, that a stop waits for


class _Stage(Enum):
    """How far a worker is with telling what it holds."""

    BEGUN = 0
    OPENED = 1
    COMPLETE = 2


class DiskTier:
    """Everything about the disk that the service knows of. On the loop's thread only.

    Where the configuration has no disk all of it does nothing.
    """

    def __init__(self, segments: Segments, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self._owner: Owner = segments.owner
        self._options = config.disk
        self._loop = loop
        self._supervisor = Supervisor(segments, config.disk, self, loop)
        self._supervisor.populated = config.arena.prefault == "populate"
        self._budget = Budget(config.disk.budget)
        send = self._supervisor.send
        self._behind = WriteBehind(self._owner, config.disk, self._budget, send)
        self._saving = Saving(self._owner, config.disk, self._behind, loop)
        self._fetches = Fetches(self._owner, int(config.store.expiry * 1e9), send, loop)
        self._flushes = Flushes(loop)
        self._contents = Contents(self._owner)
        self._stage = _Stage.BEGUN
        self._refused = False  # the last try ended with why there can be no tier
        self._doubted = False  # the last worker ended as it did not know what the disk has
        self._lost: Alone | None = None
        self._backlog = BackPressure(self._owner, config.disk.patience, loop)
        self._bulletin = Bulletin(
            self._owner, self._behind, self._budget, self._stalled, lambda: self._supervisor.restarts
        )
        self._told_at = 0.0
        self._began = 0.0
        self._telling: asyncio.Task[None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether the configuration asks for a disk."""
        return self._options.size > 0

    @property
    def budgeted(self) -> bool:
        """Whether granted() wants to know."""
        return self.wanted and self._options.budget > 0

    @property
    def slots_kept(self) -> int:
        """Slots that a worker has to find free: 1 where one is wanted and has none."""
        return int(self.wanted and self._fetches.slot is None)

    def start(self) -> None:
        """Starts the worker, where one is wanted."""
        if not self.wanted:
            return
        self._bulletin.note(
            standing=Standing.STARTING,
            folder=str(self._options.path),
            write=self._options.write,
            cap=self._options.size,
        )
        self._supervisor.start()

    async def stop(self, timeout: float) -> None:
        """Writes what is unwritten, syncs and ends the worker: all within about `timeout` seconds.

        A tier that is still to open, or to open again, is waited for. What is lost all the same is told.
        """
        if not self.wanted:
            return
        ends = self._loop.time() + timeout
        await self._save_all(ends)
        point("disk.saved")
        is_open, left = self._bulletin.is_open, ends - self._loop.time()
        over = "" if left > 0 else f"disk.stop = {spell_duration(timeout)} is over"
        why = ", ".join(filter(None, (over, self._why_unsaved())))
        await self._supervisor.stop(max(_PAUSE_S, left) if is_open else _PAUSE_S)
        lost = (self._lost or alone(self._owner)) if is_open else in_memory(self._owner)
        tell_lost(lost, why or (self._saving.why_not_all if lost.spared else "they came while it stopped"))

    async def _save_all(self, ends: float) -> None:
        if self._bulletin.standing is Standing.NONE and self._owner.header()["pages"]:
            self.start()  # told to go before it was begun
        asked, last_try = 0, self._supervisor.restarts + _TRIES
        while self._expected() and self._supervisor.restarts <= last_try and self._loop.time() < ends:
            is_open = self._bulletin.is_open
            if is_open and self.save(asked).synced:
                return
            asked = asked + 1 if is_open else 0
            self.tidy()
            await asyncio.sleep(_PAUSE_S)

    def _expected(self) -> bool:
        """Whether the tier is there, or soon will be for pages that wait for it."""
        if self._bulletin.is_open:
            return True
        coming = self._supervisor.has_worker or not self._refused
        return self._supervisor.goes_on and coming and self._owner.header()["pages"] > 0

    def resize(self, size: int) -> None:
        """Other bytes for its files: a worker that knows them takes the place of this one, and drops what is too much.

        Until it has opened them nothing is found on disk.
        """
        if size != self._options.size:
            self._options = msgspec.structs.replace(self._options, size=size)
            self._supervisor.renew(self._options)

    def abandon(self) -> None:
        """Ends the worker at once: the next daemon starts its own."""
        self._supervisor.abandon()

    # ---- what the service asks

    def look(self) -> None:
        """After every reservation."""
        self._behind.look()

    def tidy(self) -> None:
        """A few times a second."""
        if not self.wanted:
            return
        self._saving.end_when_due()
        self._behind.tidy()
        now = self._loop.time()
        if now - self._told_at > _TELL_EVERY_S:
            self._told_at = now
            self._supervisor.send(Tell())
            self._bulletin.note()

    def admit(self, sizes: bytes, go: Callable[[], None]) -> None:
        """Calls go once, now or a moment later: before a reservation of pages of these sizes."""
        self._backlog.writing = self._behind.writing
        self._backlog.admit(sizes, go)

    def granted(self, outcomes: bytes, entries: bytes, sizes: bytes) -> None:
        """What a reservation was answered, where there is a budget."""
        self._budget.note(outcomes, self._owner.chains(entries), sizes)

    def flushed(self, digests: Collection[bytes] | None, then: Callable[[str], None]) -> None:
        """Pages of these namespaces, None for all, have left the index. then is called once, soon.

        With "" when they have left the disk; else with why they may be there still: this daemon drops them then as soon
        as the disk is back, and nobody finds them before.
        """
        if self.wanted and not self._behind.ready:
            self._flushes.keep(digests, then)
        elif self.wanted and (order := self._behind.drop_now()):
            self._flushes.wait(digests, order, then)
        else:
            then("")

    def fetch(self, request: Fetch, reply: Callable[[Fetched], None]) -> None:
        """Pages from disk; reply is called once, at the latest at the request's timeout."""
        self._fetches.ask(request, reply)

    def save(self, number: int) -> Saved:
        """How far writing everything is. The daemon goes on with it as long as it is asked again."""
        if not self._bulletin.is_open:
            why = "there is no disk tier: set disk.path and disk.size" if not self.wanted else self._bulletin.trouble
            return Saved(number, 0, 0, synced=False, trouble=why)
        return self._saving.ask(number)

    def still_asked(self) -> None:
        """Somebody waits for his turn to ask that."""
        self._saving.go_on()

    def work(self) -> DiskCounters:
        """For the metrics."""
        behind = self._behind
        return DiskCounters(
            self._bulletin.report, behind.in_flight, behind.at_work.seconds, self._fetches.at_work.seconds
        )

    # ---- what the supervisor tells

    def started(self, slot: int) -> None:
        """A worker is there; what it holds comes next."""
        self._fetches.slot = slot  # before there is anything to fetch: what is read in is the worker's, never another's
        self._began = time.monotonic()
        self._stage, self._refused, self._doubted = _Stage.BEGUN, False, False
        self._contents = Contents(self._owner)

    def hear(self, report: Report) -> None:
        """The worker says something. Raises ProtocolError if it makes no sense."""
        match report:
            case Wrote():
                self._behind.wrote(report)
                self._flushes.done(report.number, report.reason)
                self._look_at_backlog()
            case HasRead():
                self._fetches.has_read(report)
            case Synced():
                self._behind.synced(report)
            case Tells():
                self._bulletin.hear(report.state)
            case _:
                self._hear_opening(report)

    def _hear_opening(self, report: Report) -> None:
        match report, self._stage:
            case Opened(), _Stage.BEGUN:
                self._stage = _Stage.OPENED
                self._owner.disk_open(report.room, RULES[self._options.write])
                point("disk.opened")
                self._bulletin.hear(report.state)
            case Holds(), _Stage.OPENED:
                self._contents.add(report)
            case Complete(), _Stage.OPENED:
                self._stage = _Stage.COMPLETE
                self._telling = self._loop.create_task(self._take_up())
            case Fails(), _:  # the supervisor keeps the reason: the end follows
                self._doubted = report.trust is not Trust.AS_LEFT  # so that the next worker proves it, and opens it
                self._refused = self._stage is not _Stage.COMPLETE and not self._doubted
            case _:
                raise ProtocolError(f"{type(report).__name__} at the wrong time")

    def ended(self, slot: int, why: str) -> None:
        """The worker is gone: there is no disk tier until the next one."""
        if self._telling is not None:
            self._telling.cancel()
        if self._supervisor.leaving:
            self._lost = alone(self._owner)
        comes_again = self._supervisor.renewing or self._doubted
        self._refused = self._refused or (self._stage is _Stage.BEGUN and not comes_again)
        self._owner.reap(slot)
        point("disk.reaped")
        self._owner.disk_close()
        point("disk.closed")
        self._behind.lost()
        self._flushes.lost()
        self._look_at_backlog()
        self._fetches.lost()
        point("disk.lost")
        self._bulletin.note(standing=Standing.DOWN, trouble=why)
        if self._supervisor.renewing:
            log.info("no disk tier for a moment: %s", why, extra=event("disk_resized"))
        elif not self._supervisor.leaving:
            log.warning("no disk tier: %s", why, extra=event("disk_down"))

    def _look_at_backlog(self) -> None:
        self._backlog.writing = self._behind.writing
        self._backlog.look()

    def failed(self, why: str) -> None:
        """There is no worker to be had: it is tried again later."""
        self._refused = True
        self._bulletin.note(standing=Standing.DOWN, trouble=why)
        log.warning("no disk tier: %s", why, extra=event("disk_down"))

    async def _take_up(self) -> None:
        """The index learns what is on disk; then the work begins."""
        contents, self._contents = self._contents, Contents(self._owner)
        drops = await contents.tell(self._flushes.among)
        point("disk.known")
        self._flushes.again(self._behind.begin(drops, contents.newest))
        point("disk.begun")
        self._bulletin.note(standing=Standing.OPEN, trouble="")
        header = self._owner.header()
        log.info(
            "disk tier in %s: %d pages, %s of %s, %s; ready after %.2f s",
            self._options.path,
            header["disk_pages"],
            format_size(header["disk_bytes"]),
            format_size(self._options.size),
            self._bulletin.report.opened,
            time.monotonic() - self._began,
            extra=event("disk_open", pages=header["disk_pages"]),
        )
        if too_large := self.too_large():
            log.warning("%s", too_large, extra=event("disk_size"))

    def too_large(self) -> str:
        """That the tier may grow beyond its file system, or ""."""
        return beyond_its_disk(self._options, self._bulletin.report.disk_total)

    def _why_unsaved(self) -> str:
        if not self._bulletin.is_open:
            return f"the disk tier is not open ({self._bulletin.trouble})"
        return self._behind.stalled() or self._behind.trouble

    def _stalled(self) -> str:
        """That the disk has not done for long what it was told, or that its worker is opening it for long; or ""."""
        waited = time.monotonic() - self._began
        if self._stage is _Stage.BEGUN and self._supervisor.has_worker and waited > STALLED_S:
            return f"the disk has not answered for {waited:.0f} s: it is still being opened"
        return self._behind.stalled()
