"""Reads pages from disk and the fleet for engines; a request is answered when its pages are there, or in time.

The steps of one request, in this order:

1. *Granted* (`_grant_disk` or `_grant_both`). The index grants the worker of a page's device frames for it,
   as it grants an engine frames for a store. The page has a writer and no readers, so no match finds it, and a second
   request waits for the same read.
2. *Sent* (`_read_from`). The command names entries and serials, and is
   recorded before it is sent.
3. *Read*, by the worker: it reads into the frames, verifies the checksum, and only then publishes the page. A page that
   fails is abandoned, which returns the frames, and is reported as damaged.
4. *Reported* (`has_read_from_disk`). A damaged page first leaves the index and the disk (`disk_damaged`). Then the
   requests that wait for the page are answered: what an engine does next must not find the damaged page again.
5. *Answered* (`_answer`), when the last page of a request has ended or its timeout has passed, and within step 1 if it
   waits for nothing.

The fleet takes part as one more device, with the number FLEET (`begin`). In step 1 it is granted pages that no device
has, if they were located there (`ask_located`). Its reports come from `FleetTier` and enter at `end_pages`, not at
`has_read_from_disk`: the fleet keeps its own counts, and a page damaged there has no copy on disk to be dropped.

The answer only says when to match again. Engines read bytes of pages that a match has pinned, so a report that is wrong
or late costs a miss and serves no other bytes. The same holds when the worker dies between two steps: the index takes
its frames back (`DiskDevice.ended`), then its requests are answered as misses (`lost`).
"""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pagetier.daemon.common.busy_time import BusyTime
from pagetier.daemon.common.log_throttle import FaultLog
from pagetier.daemon.reads.pending_reads import DeviceReads, PageRead, ReadJob, ReadPages, WaitingFetch
from pagetier.daemon.workers.worker_process import CommandSender
from pagetier.shm._core import DISK_DEVICES, Owner, ReserveOutcome, located_columns
from pagetier.shm.failpoints import point
from pagetier.shm.page_rows import PAGES_TO_READ, PageToRead
from pagetier.shm.protocol import Fetch, Fetched, FetchLocated, FetchOutcome, ProtocolError, Space
from pagetier.tiers.worker_protocol import HasRead, Read

# The largest parts of the arena that pages being read may take, from disk and from the fleet.
_MOST_READING = 0.9
_MOST_FROM_FLEET = 0.5
FLEET: Final = DISK_DEVICES  # in place of a device's number
_GRANTED: Final = (ReserveOutcome.GRANTED, ReserveOutcome.GRANTED_TO_FLEET)
_BEING_READ: Final = (*_GRANTED, ReserveOutcome.PENDING)
_IS_BEING_READ: Final = bytes(outcome in _BEING_READ for outcome in range(256))
NO_LIMIT: Final = 1 << 62  # of the frames of a request


class LowerTierReads:
    """The requests that read from disk or the fleet, and the commands to the workers. On the loop's thread only.

    The devices of the disk share the part of the arena that pages being read may take, so that one that hangs does not
    keep all of it from the others.
    """

    def __init__(self, owner: Owner, ttl_ns: int, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._ttl_ns = ttl_ns
        self._loop = loop
        self._numbers = itertools.count(1)
        self._devices: dict[int, DeviceReads] = {}
        self._reading: dict[int, PageRead] = {}
        header = owner.header()
        self._frame_bytes = header.frame_bytes
        self._most_frames = max(1, int(header.frames * _MOST_READING))
        self._most_from_fleet = max(1, int(header.frames * _MOST_FROM_FLEET))
        self._faults = FaultLog("the disk tier cannot read a page: %s; it counts as a miss")
        self.at_work = BusyTime()

    @property
    def workers(self) -> int:
        """The number of devices that have a worker."""
        return len(self._devices) - (FLEET in self._devices)

    def begin(self, device: int, slot: int, send: CommandSender) -> None:
        """Reserves frames for a device's worker in this slot and sends it the commands from now on."""
        self._devices[device] = DeviceReads(slot, send)

    def ask(self, request: Fetch, reply: Callable[[Fetched], None], most_frames: int = NO_LIMIT) -> int:
        """Reads the requested pages into at most `most_frames` frames; calls `reply` once, maybe before it returns.

        Returns:
            The number of frames that were granted.
        """
        stalled = self._stalled()
        rows = self._grant_disk(request.keys, stalled, most_frames)
        return self._begin(request, reply, rows, {}, stalled)

    def ask_located(self, request: FetchLocated, reply: Callable[[Fetched], None], spaces: Sequence[int]) -> None:
        """Reads the requested pages as ask() does, and those that no device has from the fleet.

        Args:
            request: The request, with whole rows.
            reply: Takes the response.
            spaces: The numbers in the index of the request's namespaces; none to read from disk only.
        """
        stalled, fleet = self._stalled(), self._devices.get(FLEET)
        if spaces and fleet is not None:
            rows = self._grant_both(request.pages, stalled, fleet, spaces)
        else:
            rows = self._grant_disk(located_columns(request.pages)[0], stalled, NO_LIMIT)
        self._begin(request, reply, rows, dict(zip(spaces, request.table, strict=False)), stalled)

    def _stalled(self) -> set[int]:
        """Returns the devices that have read nothing for long.

        Each gets at most one frame for a request, to find out when it reads again, and no request waits for it: a disk
        that hangs takes neither the arena nor the time of engines.
        """
        now = self._loop.time()
        return {number for number, device in self._devices.items() if device.stalled(now)}

    def _begin(
        self,
        request: Fetch | FetchLocated,
        reply: Callable[[Fetched], None],
        rows: bytes,
        spaces: dict[int, Space],
        stalled: set[int],
    ) -> int:
        """Sends the reads of what was granted, and waits for pages. Returns the number of frames that were granted."""
        outcomes = PAGES_TO_READ.codes(rows, "outcome")
        # A request may name half a million pages. Only those that are read become objects: others wait.
        being_read = itertools.compress(itertools.count(), outcomes.translate(_IS_BEING_READ))
        pages = {at: PAGES_TO_READ.row(rows, at) for at in being_read}
        point("reads.granted")
        waiting = WaitingFetch(request, outcomes, reply)
        granted = self._read(pages.values(), spaces)
        point("reads.sent")
        # Pages that other requests asked for before are waited for like the ones that were granted now.
        for at, page in pages.items():
            if page.serial in self._reading and self._reading[page.serial].device not in stalled:
                waiting.open[page.serial].append(at)
        if waiting.open and request.timeout > 0:
            self._wait(waiting, request.timeout)
        else:
            self._answer(waiting)
        return granted

    def _grant_disk(self, keys: bytes, stalled: set[int], most_frames: int) -> bytes:
        """Grants the disk's workers frames for the pages that a device has. Returns rows of PAGES_TO_READ."""
        room = self._room(stalled, most_frames)
        return self._owner.fetch(array("I", self._slots()), self._ttl_ns, keys, array("Q", room))

    def _grant_both(self, pages: bytes, stalled: set[int], fleet: DeviceReads, spaces: Sequence[int]) -> bytes:
        """Grants as `_grant_disk` does, and the fleet's worker frames for the located pages that no device has."""
        left = 1 if FLEET in stalled else max(0, self._most_from_fleet - fleet.frames)
        return self._owner.fetch_located(
            array("I", self._slots()),
            self._ttl_ns,
            pages,
            array("Q", self._room(stalled, NO_LIMIT)),
            fleet.slot,
            left,
            array("I", spaces),
        )

    def has_read_from_disk(self, number: int, report: HasRead) -> None:
        """Handles what a disk's worker read of a read command. Raises ProtocolError if there is no such command."""
        if report.damaged:
            self._require_job(number, report)
            self._owner.disk_damaged(report.damaged, number)
            point("reads.damaged")
        done = self.end_pages(number, report)
        self._owner.count_fetched(done.read, done.nbytes, done.unread)
        self._faults.report(report.reason)

    def end_pages(self, number: int, report: HasRead) -> ReadPages:
        """Completes some pages of a read command, of a device or the fleet, for the requests that wait for them.

        Returns:
            How many pages and bytes were read, and how many pages were not.

        Raises:
            ProtocolError: There is no such command.
        """
        device = self._devices[number]
        job = self._require_job(number, report)
        device.read_at = job.at = self._loop.time()
        came = 0
        for page, flag in enumerate(report.read, report.first):
            size, serial = job.pages[page].size, job.pages[page].serial
            came += size if flag else 0
            device.frames -= self._frames_of(size)
            self._complete(serial, FetchOutcome.IN_MEMORY if flag else FetchOutcome.ABSENT, report.reason)
        point("reads.completed")
        if not any(page.serial in self._reading for page in job.pages):  # the reports of a command arrive in parts
            device.end(report.number, job.at)
        self._note_work()
        read = report.read.count(1)
        return ReadPages(read, came, len(report.read) - read)

    def oldest(self, number: int, now: float) -> tuple[int, float]:
        """Returns the number of pages of a device's oldest command, and for how many seconds none of them ended."""
        job = self._devices[number].oldest if number in self._devices else None
        return (len(job.pages), now - job.at) if job is not None else (0, 0.0)

    def _require_job(self, number: int, report: HasRead) -> ReadJob:
        """Returns the read command of a report. Raises ProtocolError if there is none."""
        job = self._devices[number].jobs.get(report.number)
        if job is None or report.first + len(report.read) > len(job.pages):
            raise ProtocolError("a report on pages without a read command")
        return job

    def _note_work(self) -> None:
        """Takes note of whether the disk is reading."""
        self.at_work.note(sum(len(device.jobs) for number, device in self._devices.items() if number != FLEET))

    def lost(self, number: int) -> None:
        """Completes all reads of a device as failed: its worker is gone, and the index has taken its frames back."""
        self._devices.pop(number, None)
        for serial in [serial for serial, page in self._reading.items() if page.device == number]:
            name = "fleet's" if number == FLEET else "disk"
            self._complete(serial, FetchOutcome.ABSENT, f"the {name} worker ended while it read the page")
        self._note_work()

    def _slots(self) -> list[int]:
        return [self._devices[n].slot if n in self._devices else 0 for n in range(DISK_DEVICES)]

    def _room(self, stalled: set[int], most_frames: int) -> list[int]:
        """Returns how many frames a request may get for each device: one for a stalled one, as long as it has room."""
        devices = max(1, self.workers)
        most, most_asked = max(1, self._most_frames // devices), max(1, most_frames // devices)
        used = [self._devices[n].frames if n in self._devices else 0 for n in range(DISK_DEVICES)]
        return [min(max(0, most - frames), 1 if n in stalled else most_asked) for n, frames in enumerate(used)]

    def _read(self, pages: Iterable[PageToRead], spaces: dict[int, Space]) -> int:
        """Asks the workers to read the pages for which frames were granted, each those of its device.

        Returns:
            The number of these frames.
        """
        granted = defaultdict[int, list[PageToRead]](list)
        for page in pages:
            if page.outcome in _GRANTED:
                granted[page.device].append(page)
        frames = sum(self._read_from(number, granted[number], spaces) for number in sorted(granted))
        if granted:
            self._note_work()
        return frames

    def _read_from(self, number: int, pages: list[PageToRead], spaces: dict[int, Space]) -> int:
        device, now = self._devices[number], self._loop.time()
        command = Read(next(self._numbers), PAGES_TO_READ.pack(pages), spaces if number == FLEET else {})
        if not device.jobs:
            device.read_at = now
        device.jobs[command.number] = ReadJob(tuple(pages), now)
        self._reading |= {page.serial: PageRead(number) for page in pages}
        frames = sum(self._frames_of(page.size) for page in pages)
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

    def _wait(self, waiting: WaitingFetch, timeout: float) -> None:
        for serial in waiting.open:
            self._reading[serial].waiting[waiting] = None
        waiting.timer = self._loop.call_later(timeout, self._answer, waiting)

    def _answer(self, waiting: WaitingFetch) -> None:
        """Answers a request now, with the pages that are not read yet as missed.

        It waits for no page, or its timeout has passed: then it is forgotten, because a disk may hang forever.
        """
        if waiting.reply is None:
            return
        for serial in waiting.open:
            self._reading[serial].waiting.pop(waiting, None)
        if len(waiting.outcomes) > waiting.outcomes.count(FetchOutcome.IN_MEMORY):
            self._owner.count_fetched(0, 0, waiting.missed_on_disk())
            waiting.reason = waiting.reason or self._why(waiting.outcomes)
        waiting.end()

    def _why(self, outcomes: bytearray) -> str:
        if not self._devices:
            return "the disk tier is not open"
        return "the timeout passed before all pages were read" if FetchOutcome.PENDING in outcomes else ""
