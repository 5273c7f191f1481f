"""The fleet of one daemon, from start() to stop(): its worker, and what the worker's reports mean."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from pagetier.daemon.common.child_environ import child_environ
from pagetier.daemon.config.remote_options import RemoteOptions
from pagetier.daemon.fleet.absent_pages import UNREADABLE_S
from pagetier.daemon.fleet.breaker import Call
from pagetier.daemon.fleet.fleet_health import FleetHealth
from pagetier.daemon.fleet.questions import Answered, FleetQuestions
from pagetier.daemon.fleet.write_through import WriteThrough
from pagetier.daemon.reads.lower_tier_reads import FLEET, LowerTierReads
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.workers.supervisor import Supervisor
from pagetier.daemon.workers.worker_link import ChildWorkers, PeerWorkers, WorkerSource
from pagetier.daemon.workers.worker_process import CommandSender, no_worker
from pagetier.shm.log_format import event
from pagetier.shm.page_rows import PAGES_TO_READ
from pagetier.shm.protocol import Locate, Located, ProtocolError, Reserve, Reserved
from pagetier.shm.segments import Segments
from pagetier.shm.units import counted
from pagetier.tiers import worker_protocol
from pagetier.tiers.base import FleetState, shown_url
from pagetier.tiers.busy_rate import BusyRate
from pagetier.tiers.worker_protocol import (
    Command,
    Complete,
    FleetOpened,
    Found,
    GetState,
    HasRead,
    OpenFailed,
    Read,
    Report,
    Wrote,
)

log = logging.getLogger("pagetierd.fleet")

WORKER_SOCKET: Final = "remote.sock"
_REPORT_EVERY_S: Final = 1.0
_SILENT_S: Final = 5.0
_TURN_S: Final = 1.0  # at most between two turns, unless the daemon was stopped or got no core
_OPENING_S: Final = 30.0
_STOP_S: Final = 0.5
_PATIENCE: Final = 10  # times remote.timeout, and once for each page: then a command is never answered


class FleetTier:
    """The fleet as the service sees it, the WorkerHandler of its worker. On the loop's thread only.

    Without a configured fleet it is never asked and has no effect.

    Attributes:
        report: The status, as it was noted last.
    """

    def __init__(
        self,
        segments: Segments,
        options: RemoteOptions,
        reads: LowerTierReads,
        publish: Callable[[FleetStatus], None],
        loop: asyncio.AbstractEventLoop,
        socket: Path,
    ) -> None:
        """Takes `socket`, the daemon's control socket: that of a worker that is a service lies beside it."""
        self._owner = segments.owner
        self._loop = loop
        self._options = options
        self._reads = reads
        self._publish = publish
        self._send: CommandSender = no_worker
        self._health = FleetHealth(self._follow_breaker)
        self.questions = FleetQuestions(loop, options.ask_timeout, self._answered)
        self.writes = WriteThrough(self._owner.header().arena_bytes)
        self.writes.rate = options.rate
        self._supervisor = Supervisor(segments, options.fleet, self, loop, self._source(socket))
        self._is_open, self._slot = False, 0
        self._heard_at = self._asked_at = self._turn_at = 0.0
        self._rate = BusyRate()
        self.report = self._before = FleetStatus(url=shown_url(options.url))
        self._owner.set_fleet_breaker(1)

    def _source(self, socket: Path) -> WorkerSource:
        if self._options.worker == "spawn":
            return ChildWorkers(child_environ())
        return PeerWorkers(socket.with_name(WORKER_SOCKET), self.failed)

    @property
    def configured(self) -> bool:
        """Whether a fleet is configured."""
        return bool(self._options.url)

    @property
    def slots_kept(self) -> int:
        """The number of slots to keep free for the worker."""
        return int(self.configured and self._send is no_worker)

    def start(self) -> None:
        """Starts the worker if a fleet is configured."""
        if self.configured:
            self.follow(self._options)
            self._note(standing="starting")
            self._supervisor.start()

    async def stop(self) -> None:
        """Ends the worker; what is not written by then is not written."""
        self._owner.set_fleet_breaker(1)
        if self.configured:
            await self._supervisor.stop(_STOP_S)

    def abandon(self) -> None:
        """Kills the worker: the next daemon starts its own."""
        self._owner.set_fleet_breaker(1)
        self._supervisor.abandon()

    def follow(self, options: RemoteOptions) -> None:
        """Applies the settings that may change while engines run."""
        self._options = options
        self.questions.ask_timeout, self.writes.rate = options.ask_timeout, options.rate
        self.writes.enabled = self.configured and options.write == "through"
        if options.write != "through":
            self.writes.drop_all()

    def locate(self, request: Locate, reply: Callable[[Located], None]) -> None:
        """Asks which pages the fleet has. `reply` is called once, at most `remote.ask_timeout` later."""

        def answer(sizes: bytes) -> None:
            reply(Located(request.number, sizes, self.report.rate))

        ask = self.questions.ask if self._asks else self.questions.refuse
        ask(request, answer)

    def note_stored(self, request: Reserve, answer: Reserved, nbytes: int) -> None:
        """Queues what a reservation granted to be written. See WriteThrough.note()."""
        if self.writes.enabled:
            self.writes.note(request, answer, nbytes)

    def tidy(self) -> None:
        """Sends what is due, watches the worker and publishes the status. Called a few times a second."""
        if not self.configured:
            return
        now = self._loop.time()
        paused_s, self._turn_at = max(0.0, now - self._turn_at - _TURN_S), now
        self._heard_at = min(now, self._heard_at + paused_s)  # while the daemon does not run, it asks nothing
        self.writes.take_due()
        if self._is_open:
            self._tidy_open(now)
            self._end_overdue(now)
        if self._send is not no_worker and now - self._heard_at > (_SILENT_S if self._is_open else _OPENING_S):
            self._supervisor.replace("did not answer and was killed")
            self._heard_at = now
        if now - self._asked_at > _REPORT_EVERY_S:
            self._asked_at = now
            self._send(GetState())
            self._note()
            self._health.report_again()
            self._health.report_given_up(self.writes.counts.failed, self.writes.given_up)

    def _end_overdue(self, now: float) -> None:
        """Replaces a worker that answers, but that has lost a command: its pages would be pending for ever."""
        for pages, waited_s in (self._reads.oldest(FLEET, now), self.writes.oldest(now)):
            if waited_s > (limit := self._options.timeout * (_PATIENCE + pages)):
                self._supervisor.replace(f"did not answer a command for {counted(pages, 'page')} within {limit:g} s")

    def _tidy_open(self, now: float) -> None:
        if self._health.reads.take_probe(now):
            self.questions.probe(self._probed)
        if self._health.reads.is_open:
            return
        if not self._health.writes.is_open:
            self.writes.send_due()
        elif self.writes.is_due and self._health.writes.take_probe(now):
            self.writes.send_due(1)

    @property
    def _asks(self) -> bool:
        """Whether engines may ask."""
        return self._is_open and not self._health.reads.is_open

    def started(self, slot: int, send: CommandSender) -> None:
        """Implements WorkerHandler.started()."""
        self._slot, self._send = slot, send
        self._heard_at = self._loop.time()

    def _send_read(self, command: Command) -> None:
        if isinstance(command, Read):
            self._rate.began(PAGES_TO_READ.count(command.pages), self._loop.time())
        self._send(command)

    def hear(self, report: Report) -> None:
        """Implements WorkerHandler.hear(). Raises ProtocolError for a report that is invalid now."""
        self._heard_at = self._loop.time()
        match report:
            case Found():
                self.questions.found(report)
            case HasRead() if self._is_open:
                self._has_read(report)
            case Wrote():
                self._health.judge_write(report.stored, self.writes.wrote(report))
            case worker_protocol.FleetReport():
                self._log_note(report.state.note)
                self._note(**self._before.with_worker(report.state))
            case FleetOpened() if not self._is_open:
                self._open(report.state)
            case Complete() | OpenFailed():  # the process keeps the reason of a failure for ended()
                pass
            case _:
                raise ProtocolError(f"{type(report).__name__} at the wrong time")

    def ended(self, slot: int, why: str) -> None:
        """Implements WorkerHandler.ended(): engines do not ask until the next worker has opened the fleet."""
        self._is_open, self._send = False, no_worker
        self._owner.set_fleet_breaker(1)
        self._owner.reap(slot)
        self.questions.send = no_worker
        self.questions.lost()
        self.writes.lost()
        self._rate.lost()
        self._reads.lost(FLEET)
        self._note(standing="down", trouble=why, lent_bytes=0)
        self._before = self.report
        if not self._supervisor.leaving:
            self._health.report_down(why)

    def failed(self, why: str) -> None:
        """Implements WorkerHandler.failed()."""
        self._note(standing="down", trouble=why)
        self._health.report_down(why)

    def _open(self, state: FleetState) -> None:
        self._is_open = True
        self._health.answers()
        self._reads.begin(FLEET, self._slot, self._send_read)  # not before: it may never open
        self.questions.send = self._send
        self.writes.begin(self._send)
        self.follow(self._options)
        self._owner.set_fleet_breaker(0)
        log.info("fleet in %s: open", state.url, extra=event("fleet_open"))
        self._note(standing="open", trouble="", **self._before.with_worker(state))

    def _has_read(self, report: HasRead) -> None:
        """Counts what came, and remembers what did not: the fleet may claim for a while that it has it."""
        done = self._reads.end_pages(FLEET, report)
        now = self._loop.time()
        if report.damaged:
            self.questions.absent.add(report.damaged, now, UNREADABLE_S)
        self._rate.ended(len(report.read), done.nbytes, now)
        self.report = msgspec.structs.replace(
            self.report,
            read=self.report.read + done.read,
            read_bytes=self.report.read_bytes + done.nbytes,
            unread=self.report.unread + done.unread,
            rate=self._rate.rate,
        )
        self._health.judge_read(report)

    def _answered(self, answered: Answered, trouble: str) -> None:
        self._health.judge(Call.QUESTION, trouble)

    def _probed(self, answered: Answered, trouble: str) -> None:
        if not trouble:
            self._health.answers()

    def _follow_breaker(self) -> None:
        """Lets engines ask or not after the breaker has opened or closed."""
        self._owner.set_fleet_breaker(int(not self._asks))
        self._note(trouble=self._health.trouble, opened_at=self._health.opened_at)

    def _log_note(self, note: str) -> None:
        if note and note != self.report.note:
            log.warning("this host cannot read pages of the fleet: %s", note, extra=event("fleet_note"))

    def _note(self, **news: object) -> None:
        """Takes over the fields in `news` and the current values of the others, and publishes them."""
        counts = {answered.value: count for answered, count in self.questions.counts.items()}
        state = msgspec.structs.asdict(self.writes.counts) | {
            "breaker_open": self._health.reads.is_open,
            "openings": self._health.reads.openings,
            "write_trouble": self.writes.trouble,
            "given_up": self.writes.given_up,
            "queued_bytes": self.writes.queued_bytes,
            "restarts": self._supervisor.restarts,
        }
        self.report = msgspec.structs.replace(self.report, **counts, **(state | news))
        self._publish(self.report)
