"""Reads pages from disk for engines: each request is answered when its pages are there or its timeout has passed."""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Final

import msgspec

from pagetier.daemon.common.log_throttle import FaultLog
from pagetier.daemon.disk.status import Busy
from pagetier.daemon.disk.worker_process import CommandSender, no_worker
from pagetier.shm._core import KEY_BYTES, Owner, ReserveOutcome
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import Fetch, Fetched, FetchOutcome, ProtocolError
from pagetier.tiers.worker_protocol import HasRead, Read

_FETCH_OUTCOME_OF: Final = {
    ReserveOutcome.GRANTED: FetchOutcome.PENDING,
    ReserveOutcome.PRESENT: FetchOutcome.IN_MEMORY,
    ReserveOutcome.PENDING: FetchOutcome.PENDING,
    ReserveOutcome.REFUSED_FULL: FetchOutcome.NO_ROOM,
    ReserveOutcome.ABSENT: FetchOutcome.ABSENT,
}
_FETCH_OUTCOMES: Final = bytes.maketrans(bytes(_FETCH_OUTCOME_OF), bytes(_FETCH_OUTCOME_OF.values()))
# The largest part of the arena that pages being read may take.
_MOST_READING = 0.9
NO_LIMIT: Final = 1 << 62  # of the frames of a request
# A disk that has completed no read for this long is stalled: it gets no more frames, and requests do not wait for it.
_STALLED_S = 2.0


class _WaitingFetch:
    """One request that waits for pages.

    Attributes:
        outcomes: The answer so far, one byte for each page of the request.
        open: The positions in the answer of each page that is being read, by the page's serial.
    """

    def __init__(self, request: Fetch, outcomes: bytes, reply: Callable[[Fetched], None]) -> None:
        self.number = request.number
        self.outcomes = bytearray(outcomes)
        self.open: defaultdict[int, array[int]] = defaultdict(lambda: array("I"))
        self.reply: Callable[[Fetched], None] | None = reply
        self.reason = ""
        self.timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """Sends the response with the current outcomes, once."""
        if self.timer is not None:
            self.timer.cancel()
        reply, self.reply = self.reply, None
        if reply is not None:
            reply(Fetched(self.number, bytes(self.outcomes), self.reason))


class _Job(msgspec.Struct, frozen=True):
    """The pages of one read command to the worker."""

    serials: array[int]
    sizes: array[int]


class DiskReads:
    """The requests that read from disk. On the loop's thread only.

    Attributes:
        slot: The worker's slot; None while there is no worker.
    """

    def __init__(self, owner: Owner, ttl_ns: int, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._ttl_ns = ttl_ns
        self._send: CommandSender = no_worker
        self._loop = loop
        self._numbers = itertools.count(1)
        self._jobs: dict[int, _Job] = {}
        self._reading: dict[int, dict[_WaitingFetch, None]] = {}
        header = owner.header()
        self._frame_bytes = header.frame_bytes
        self._most_frames = max(1, int(header.frames * _MOST_READING))
        self._frames_reading = 0
        self._read_at = 0.0
        self._faults = FaultLog("the disk tier cannot read a page: %s; it counts as a miss")
        self.slot: int | None = None
        self.at_work = Busy()

    def begin(self, slot: int, send: CommandSender) -> None:
        """Reserves frames for the worker in this slot and sends it the commands from now on."""
        self.slot, self._send = slot, send

    def ask(self, request: Fetch, reply: Callable[[Fetched], None], most_frames: int = NO_LIMIT) -> int:
        """Reads the requested pages into at most `most_frames` frames; calls `reply` once, maybe before it returns.

        Returns:
            The number of frames that were granted.
        """
        slot = 0 if self.slot is None else self.slot
        stalled = self._stalled()
        room = 1 if stalled else max(1, min(most_frames, self._most_frames - self._frames_reading))
        outcomes, entries, serials = self._owner.fetch(slot, self._ttl_ns, request.keys, room)
        point("disk_reads.granted")
        waiting = _WaitingFetch(request, outcomes.translate(_FETCH_OUTCOMES), reply)
        granted = self._read(request.keys, outcomes, entries, serials)
        point("disk_reads.sent")
        for page, serial in enumerate(array("Q", serials)):
            if outcomes[page] in (ReserveOutcome.GRANTED, ReserveOutcome.PENDING) and serial in self._reading:
                waiting.open[serial].append(page)
        if waiting.open and request.timeout > 0 and not stalled:
            self._wait(waiting, request.timeout)
        else:
            self._late(waiting)
        return granted

    def has_read(self, report: HasRead) -> None:
        """Handles the worker's report on pages of a read command. Raises ProtocolError if there is no such command."""
        job = self._jobs.get(report.number)
        if job is None or report.first + len(report.read) > len(job.serials):
            raise ProtocolError("a report on pages without a read command")
        self._read_at = self._loop.time()
        if report.damaged:
            self._owner.disk_damaged(report.damaged)
            point("disk_reads.damaged")
        came = 0
        for page, flag in enumerate(report.read, report.first):
            came += job.sizes[page] if flag else 0
            self._frames_reading -= self._frames_of(job.sizes[page])
            self._complete(job.serials[page], FetchOutcome.IN_MEMORY if flag else FetchOutcome.ABSENT, report.reason)
        point("disk_reads.completed")
        read = report.read.count(1)
        self._owner.count_fetched(read, came, len(report.read) - read)
        self._faults.report(report.reason)
        if not any(serial in self._reading for serial in job.serials):
            del self._jobs[report.number]
        self.at_work.note(len(self._reading))

    def lost(self) -> None:
        """Completes all reads as failed: the worker is gone."""
        self.slot, self._send = None, no_worker
        self._jobs.clear()
        self._frames_reading = 0
        for serial in list(self._reading):
            self._complete(serial, FetchOutcome.ABSENT, "the disk worker ended while it read the page")
        self.at_work.note(0)

    def _read(self, keys: bytes, outcomes: bytes, entries: bytes, serials: bytes) -> int:
        """Asks the worker to read the pages for which frames were granted. Returns the number of these frames."""
        granted = [page for page, outcome in enumerate(outcomes) if outcome == ReserveOutcome.GRANTED]
        if not granted:
            return 0
        wanted = b"".join(entries[4 * i : 4 * i + 4] for i in granted)
        numbers = b"".join(serials[8 * i : 8 * i + 8] for i in granted)
        sizes = self._owner.sizes(wanted)
        wanted_keys = b"".join(keys[KEY_BYTES * i : KEY_BYTES * (i + 1)] for i in granted)
        command = Read(next(self._numbers), wanted, numbers, wanted_keys, sizes)
        job = _Job(array("Q", numbers), array("Q", sizes))
        self._jobs[command.number] = job
        if not self._reading:
            self._read_at = self._loop.time()
        self._reading |= {serial: {} for serial in job.serials}
        self.at_work.note(len(self._reading))
        frames = sum(map(self._frames_of, job.sizes))
        self._frames_reading += frames
        self._send(command)
        return frames

    def _stalled(self) -> bool:
        return bool(self._reading) and self._loop.time() - self._read_at > _STALLED_S

    def _frames_of(self, size: int) -> int:
        return -(-size // self._frame_bytes)

    def _complete(self, serial: int, outcome: int, reason: str) -> None:
        for waiting in self._reading.pop(serial, ()):
            for page in waiting.open.pop(serial):
                waiting.outcomes[page] = outcome
            waiting.reason = waiting.reason or (reason if outcome != FetchOutcome.IN_MEMORY else "")
            if not waiting.open:
                waiting.end()

    def _wait(self, waiting: _WaitingFetch, timeout: float) -> None:
        for serial in waiting.open:
            self._reading[serial][waiting] = None
        waiting.timer = self._loop.call_later(timeout, self._late, waiting)

    def _late(self, waiting: _WaitingFetch) -> None:
        """Answers a request whose timeout has passed and forgets it, because a disk may hang forever."""
        if waiting.reply is None:
            return
        for serial in waiting.open:
            self._reading[serial].pop(waiting, None)
        missed = len(waiting.outcomes) - waiting.outcomes.count(FetchOutcome.IN_MEMORY)
        if missed:
            self._owner.count_fetched(0, 0, missed)
            waiting.reason = waiting.reason or self._why(waiting.outcomes)
        waiting.end()

    def _why(self, outcomes: bytearray) -> str:
        if self.slot is None:
            return "the disk tier is not open"
        return "the timeout passed before all pages were read" if FetchOutcome.PENDING in outcomes else ""
