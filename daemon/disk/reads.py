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
from pagetier.daemon.workers.worker_process import CommandSender
from pagetier.shm._core import DISK_DEVICES, KEY_BYTES, Owner, ReserveOutcome
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
    """The pages of one read command to a worker."""

    serials: array[int]
    sizes: array[int]


class _PageRead(msgspec.Struct, frozen=True, eq=False):
    """A page that is being read from a device, and the requests that wait for it."""

    device: int
    waiting: dict[_WaitingFetch, None] = {}


class _DeviceReads(msgspec.Struct, eq=False):
    """The read commands of one device.

    Attributes:
        slot: The slot of its worker.
        send: Sends its worker a command.
        frames: The frames of the pages that are being read.
        read_at: When it last completed a read, or was idle.
    """

    slot: int
    send: CommandSender
    jobs: dict[int, _Job] = {}
    frames: int = 0
    read_at: float = 0.0

    def stalled(self, now: float) -> bool:
        """Returns whether the device has completed no read for long."""
        return bool(self.jobs) and now - self.read_at > _STALLED_S


class DiskReads:
    """The requests that read from disk. On the loop's thread only.

    The devices share the part of the arena that pages being read may take, so that one that hangs does not keep all of
    it from the others.
    """

    def __init__(self, owner: Owner, ttl_ns: int, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._ttl_ns = ttl_ns
        self._loop = loop
        self._numbers = itertools.count(1)
        self._devices: dict[int, _DeviceReads] = {}
        self._reading: dict[int, _PageRead] = {}
        header = owner.header()
        self._frame_bytes = header.frame_bytes
        self._most_frames = max(1, int(header.frames * _MOST_READING))
        self._faults = FaultLog("the disk tier cannot read a page: %s; it counts as a miss")
        self.at_work = Busy()

    @property
    def workers(self) -> int:
        """The number of devices that have a worker."""
        return len(self._devices)

    def begin(self, device: int, slot: int, send: CommandSender) -> None:
        """Reserves frames for a device's worker in this slot and sends it the commands from now on."""
        self._devices[device] = _DeviceReads(slot, send)

    def ask(self, request: Fetch, reply: Callable[[Fetched], None], most_frames: int = NO_LIMIT) -> int:
        """Reads the requested pages into at most `most_frames` frames; calls `reply` once, maybe before it returns.

        Returns:
            The number of frames that were granted.
        """
        now = self._loop.time()
        stalled = {number for number, device in self._devices.items() if device.stalled(now)}
        room = array("Q", self._room(stalled, most_frames))
        outcomes, entries, serials = self._owner.fetch(array("I", self._slots()), self._ttl_ns, request.keys, room)
        point("disk_reads.granted")
        waiting = _WaitingFetch(request, outcomes.translate(_FETCH_OUTCOMES), reply)
        granted = self._read(request.keys, outcomes, entries, serials)
        point("disk_reads.sent")
        for page, serial in enumerate(array("Q", serials)):
            if outcomes[page] not in (ReserveOutcome.GRANTED, ReserveOutcome.PENDING) or serial not in self._reading:
                continue
            if self._reading[serial].device not in stalled:
                waiting.open[serial].append(page)
        if waiting.open and request.timeout > 0:
            self._wait(waiting, request.timeout)
        else:
            self._late(waiting)
        return granted

    def has_read(self, number: int, report: HasRead) -> None:
        """Handles the result of some pages of a read command. Raises ProtocolError if there is no such command."""
        device = self._devices[number]
        job = device.jobs.get(report.number)
        if job is None or report.first + len(report.read) > len(job.serials):
            raise ProtocolError("a report on pages without a read command")
        device.read_at = self._loop.time()
        if report.damaged:
            self._owner.disk_damaged(report.damaged, number)
            point("disk_reads.damaged")
        came = 0
        for page, flag in enumerate(report.read, report.first):
            came += job.sizes[page] if flag else 0
            device.frames -= self._frames_of(job.sizes[page])
            self._complete(job.serials[page], FetchOutcome.IN_MEMORY if flag else FetchOutcome.ABSENT, report.reason)
        point("disk_reads.completed")
        read = report.read.count(1)
        self._owner.count_fetched(read, came, len(report.read) - read)
        self._faults.report(report.reason)
        if not any(serial in self._reading for serial in job.serials):
            del device.jobs[report.number]
        self.at_work.note(len(self._reading))

    def lost(self, number: int) -> None:
        """Completes all reads of a device as failed: its worker is gone."""
        self._devices.pop(number, None)
        for serial in [serial for serial, page in self._reading.items() if page.device == number]:
            self._complete(serial, FetchOutcome.ABSENT, "the disk worker ended while it read the page")
        self.at_work.note(len(self._reading))

    def _slots(self) -> list[int]:
        return [self._devices[n].slot if n in self._devices else 0 for n in range(DISK_DEVICES)]

    def _room(self, stalled: set[int], most_frames: int) -> list[int]:
        """Returns how many frames a request may get for each device: one for a stalled one, as long as it has room."""
        devices = max(1, len(self._devices))
        most, most_asked = max(1, self._most_frames // devices), max(1, most_frames // devices)
        used = [self._devices[n].frames if n in self._devices else 0 for n in range(DISK_DEVICES)]
        return [min(max(0, most - frames), 1 if n in stalled else most_asked) for n, frames in enumerate(used)]

    def _read(self, keys: bytes, outcomes: bytes, entries: bytes, serials: bytes) -> int:
        """Asks the workers to read the pages for which frames were granted, each those of its device.

        Returns:
            The number of these frames.
        """
        granted = [page for page, outcome in enumerate(outcomes) if outcome == ReserveOutcome.GRANTED]
        if not granted:
            return 0
        of, frames = self._owner.devices(entries), 0
        for number in sorted({of[page] for page in granted}):
            frames += self._read_from(number, [page for page in granted if of[page] == number], keys, entries, serials)
        self.at_work.note(len(self._reading))
        return frames

    def _read_from(self, number: int, pages: list[int], keys: bytes, entries: bytes, serials: bytes) -> int:
        device = self._devices[number]
        wanted = b"".join(entries[4 * i : 4 * i + 4] for i in pages)
        numbers = b"".join(serials[8 * i : 8 * i + 8] for i in pages)
        sizes = self._owner.sizes(wanted)
        wanted_keys = b"".join(keys[KEY_BYTES * i : KEY_BYTES * (i + 1)] for i in pages)
        command = Read(next(self._numbers), wanted, numbers, wanted_keys, sizes)
        job = _Job(array("Q", numbers), array("Q", sizes))
        if not device.jobs:
            device.read_at = self._loop.time()
        device.jobs[command.number] = job
        self._reading |= {serial: _PageRead(number) for serial in job.serials}
        frames = sum(map(self._frames_of, job.sizes))
        device.frames += frames
        device.send(command)
        return frames

    def _frames_of(self, size: int) -> int:
        return -(-size // self._frame_bytes)

    def _complete(self, serial: int, outcome: int, reason: str) -> None:
        page_read = self._reading.pop(serial, None)
        for waiting in page_read.waiting if page_read is not None else ():
            for page in waiting.open.pop(serial):
                waiting.outcomes[page] = outcome
            waiting.reason = waiting.reason or (reason if outcome != FetchOutcome.IN_MEMORY else "")
            if not waiting.open:
                waiting.end()

    def _wait(self, waiting: _WaitingFetch, timeout: float) -> None:
        for serial in waiting.open:
            self._reading[serial].waiting[waiting] = None
        waiting.timer = self._loop.call_later(timeout, self._late, waiting)

    def _late(self, waiting: _WaitingFetch) -> None:
        """Answers a request whose timeout has passed and forgets it, because a disk may hang forever."""
        if waiting.reply is None:
            return
        for serial in waiting.open:
            self._reading[serial].waiting.pop(waiting, None)
        missed = len(waiting.outcomes) - waiting.outcomes.count(FetchOutcome.IN_MEMORY)
        if missed:
            self._owner.count_fetched(0, 0, missed)
            waiting.reason = waiting.reason or self._why(waiting.outcomes)
        waiting.end()

    def _why(self, outcomes: bytearray) -> str:
        if not self._devices:
            return "the disk tier is not open"
        return "the timeout passed before all pages were read" if FetchOutcome.PENDING in outcomes else ""
