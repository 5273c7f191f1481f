"""The state of reads in progress: what each device reads, and the requests that wait for it."""

from __future__ import annotations

import asyncio
import itertools
import operator
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from pagetier.daemon.workers.worker_process import CommandSender
from pagetier.shm._core import ReserveOutcome, located_columns
from pagetier.shm.page_rows import PageToRead
from pagetier.shm.protocol import Fetch, Fetched, FetchLocated, FetchOutcome

_FETCH_OUTCOME_OF: Final = {
    ReserveOutcome.GRANTED: FetchOutcome.PENDING,
    ReserveOutcome.PRESENT: FetchOutcome.IN_MEMORY,
    ReserveOutcome.PENDING: FetchOutcome.PENDING,
    ReserveOutcome.REFUSED_FULL: FetchOutcome.NO_ROOM,
    ReserveOutcome.ABSENT: FetchOutcome.ABSENT,
    ReserveOutcome.GRANTED_TO_FLEET: FetchOutcome.PENDING,
}
_FETCH_OUTCOMES: Final = bytes.maketrans(bytes(_FETCH_OUTCOME_OF), bytes(_FETCH_OUTCOME_OF.values()))
_IS_MISSED: Final = bytes(outcome != FetchOutcome.IN_MEMORY for outcome in range(256))
# A disk that has completed no read for this long is stalled: it gets no more frames, and requests do not wait for it.
_STALLED_S: Final = 2.0


class ReadPages(NamedTuple):
    """The result of some pages of a read command: how many were read, their bytes, and how many were not."""

    read: int
    nbytes: int
    unread: int


class WaitingFetch:
    """One request that waits for pages, from what the index granted for each of its pages.

    Attributes:
        outcomes: The answer so far, one byte for each page of the request.
        open: The positions in the answer of each page that is being read, by the page's serial.
    """

    def __init__(self, request: Fetch | FetchLocated, outcomes: bytes, reply: Callable[[Fetched], None]) -> None:
        """Takes `outcomes`, the index's answer, one ReserveOutcome for each page."""
        self.number = request.number
        self.outcomes = bytearray(outcomes.translate(_FETCH_OUTCOMES))
        self.open: defaultdict[int, array[int]] = defaultdict(lambda: array("I"))
        self.reply: Callable[[Fetched], None] | None = reply
        self.reason = ""
        self._located = request.pages if isinstance(request, FetchLocated) else b""
        self.timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """Sends the response with the current outcomes, once."""
        if self.timer is not None:
            self.timer.cancel()
        reply, self.reply = self.reply, None
        if reply is not None:
            reply(Fetched(self.number, bytes(self.outcomes), self.reason))

    def missed_on_disk(self) -> int:
        """Returns how many pages are not in memory and were not located in the fleet."""
        missed = self.outcomes.translate(_IS_MISSED)
        if not self._located:
            return missed.count(1)
        sizes = array("Q", located_columns(self._located)[1])
        return sum(map(operator.not_, itertools.compress(sizes, missed)))


class ReadJob(msgspec.Struct, eq=False):
    """The pages of one read command to a worker.

    Attributes:
        at: When pages of it ended last, or it was sent, or became the oldest one.
    """

    pages: tuple[PageToRead, ...]
    at: float


class PageRead(msgspec.Struct, frozen=True, eq=False):
    """A page that is being read from a device, and the requests that wait for it."""

    device: int
    waiting: dict[WaitingFetch, None] = {}


class DeviceReads(msgspec.Struct, eq=False):
    """The read commands of one device.

    Attributes:
        slot: The slot of its worker.
        send: Sends its worker a command.
        frames: The frames of the pages that are being read.
        read_at: When it last completed a read, or was idle.
    """

    slot: int
    send: CommandSender
    jobs: dict[int, ReadJob] = {}
    frames: int = 0
    read_at: float = 0.0

    @property
    def oldest(self) -> ReadJob | None:
        """The command that was sent first, None if all have ended."""
        return next(iter(self.jobs.values()), None)

    def end(self, number: int, now: float) -> None:
        """Removes a command that has ended."""
        oldest = self.oldest
        if self.jobs.pop(number) is oldest and self.oldest is not None:
            self.oldest.at = now

    def stalled(self, now: float) -> bool:
        """Returns whether the device has completed no read for long."""
        return bool(self.jobs) and now - self.read_at > _STALLED_S
