"""Whether the fleet answers and whether it takes pages: two breakers, and the lines of the log about both."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.log_throttle import FaultEvents, FaultLog, LogThrottle
from pagetier.daemon.fleet.breaker import Breaker, Call
from pagetier.shm import clock
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.log_format import event
from pagetier.tiers.base import UNTRIED
from pagetier.tiers.worker_protocol import HasRead, Stored

log = logging.getLogger("pagetierd.fleet")
_READ_EVENTS: Final = FaultEvents(log, "fleet_trouble", "fleet_well")
_WRITE_EVENTS: Final = FaultEvents(log, "fleet_write_trouble", "fleet_write_well")


class FleetHealth:
    """The breakers of questions and reads, and of writes: a store that takes no pages may still return them.

    Attributes:
        reads: Engines ask while it is closed.
        writes: While it is open, one write is tried at each of its probes.
        trouble: Why the breaker of reads opened last, "" if it has closed since.
        opened_at: When that was, in seconds since 1970; 0 if never.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """Takes `changed`, called after engines may ask or may not ask any more."""
        self._changed = changed
        self.reads, self.writes = Breaker(), Breaker()
        self.trouble = ""
        self.opened_at = 0.0
        self._read_faults = FaultLog(
            "the fleet cannot be used: %s; its pages are misses: run pagetier doctor",
            "the fleet answers again",
            events=_READ_EVENTS,
        )
        self._write_faults = FaultLog(
            "pages cannot be written to the fleet: %s; they wait while they are in memory: run pagetier doctor",
            "the fleet takes pages again",
            events=_WRITE_EVENTS,
        )
        self._given_up, self._down = 0, ""
        self._throttle = LogThrottle(log, most=1)

    def judge(self, call: Call, trouble: str) -> None:
        """Takes note of an answer, or of a failure, which may open a breaker."""
        breaker = self.writes if call is Call.WRITE else self.reads
        was_open = breaker.is_open
        if trouble:
            breaker.failed(call, loop_clock.now())
        else:
            breaker.answered(call)
        if breaker.is_open != was_open:
            self._report(breaker, trouble)

    def judge_read(self, report: HasRead) -> None:
        """Takes note of pages that were read, or not; one that was not tried says nothing of the store."""
        failed = report.read.count(0) > len(report.damaged) // KEY_BYTES
        if not (failed and report.reason == UNTRIED):
            self.judge(Call.READ, report.reason if failed else "")

    def judge_write(self, stored: bytes, trouble: str) -> None:
        """Takes note of the results of a write, unless no page of it was tried."""
        if set(stored) <= {Stored.GONE, Stored.NO_ROOM}:
            self.writes.return_probe(loop_clock.now())
        else:
            self.judge(Call.WRITE, trouble)

    def answers(self) -> None:
        """Takes note of the answer to a probe, or of a worker that has opened the fleet."""
        self._down = ""
        was_open = self.reads.is_open
        self.reads.probe_answered()
        if was_open:
            self._report(self.reads, "")

    def report_again(self) -> None:
        """Logs a fault that came within a minute after the one before, and that lasts. Called once a second."""
        for faults in (self._read_faults, self._write_faults):
            if faults.reason:
                faults.report(faults.reason)

    def report_down(self, why: str) -> None:
        """Logs why no worker has the fleet open, once for each reason: further workers fail for the same one."""
        if why != self._down:
            self._down = why
            log.warning("no fleet: %s; serving from this host only", why, extra=event("fleet_down"))

    def report_given_up(self, pages: int, why: str) -> None:
        """Logs that pages were given up unwritten, at most once a minute. `pages` counts them from the start on."""
        if pages > self._given_up and self._throttle.count_line():
            count, self._given_up = pages - self._given_up, pages
            line = "%d pages were given up and are not in the fleet: %s; hosts compute them and what follows them"
            log.warning(line, count, why, extra=event("fleet_given_up", count=count))

    def _report(self, breaker: Breaker, trouble: str) -> None:
        if breaker is self.writes:
            self._write_faults.report(trouble)
            return
        self._read_faults.report(trouble)
        self.trouble = trouble
        self.opened_at = clock.date() if breaker.is_open else self.opened_at
        self._changed()
