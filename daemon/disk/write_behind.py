"""Writing behind: the coldest pages go to disk before they have to leave memory."""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Final

from pagetier.daemon.common.log_throttle import FaultLog
from pagetier.daemon.config.schema import BATCH_BYTES, SMALLEST_PART, DiskOptions
from pagetier.daemon.disk.status import Busy
from pagetier.daemon.disk.write_batch import WriteBatch
from pagetier.daemon.disk.write_budget import Budget
from pagetier.shm._core import Owner
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import ProtocolError, Space
from pagetier.tiers.worker_protocol import Order, Stored, Sync, Synced, Write, Wrote

RULES: Final[Mapping[str, int]] = {"evict": 0, "through": 1, "second": 2}
_BATCH_PAGES: Final = 2048
_IN_FLIGHT: Final = 2
_MOST_DROPS: Final = 1 << 20  # in one order: a message has its bounds
_IDLE_S: Final = 1.0
STALLED_S: Final = 10.0
_LOOK_S: Final = 10.0  # it is a walk over the whole index
# enum pt_write_result in core/daemon/write_behind.h
_FAILED, _DONE, _SPARED, _AGAIN = range(4)
_RESULT_OF_STORED: Final = bytes.maketrans(
    bytes([Stored.FAILED, Stored.DONE, Stored.GONE, Stored.NO_ROOM]), bytes([_FAILED, _DONE, _AGAIN, _AGAIN])
)


class WriteBehind:
    """Decides what is written and when. On the loop's thread only."""

    def __init__(self, owner: Owner, options: DiskOptions, budget: Budget, send: Callable[[Order], None]) -> None:
        header = owner.header()
        self._owner = owner
        self._options = options
        self._budget = budget
        self._send = send
        self._numbers = itertools.count(1)
        self._in_flight: dict[int, bytes] = {}
        self._dropping: dict[int, bytes] = {}
        self._lost_drops = b""
        self._frame_bytes = header["frame_bytes"]
        self._batch = max(1, min(BATCH_BYTES // self._frame_bytes, header["frames"] // SMALLEST_PART))
        self._ahead = max(1, int(header["frames"] * options.ahead))
        self._offset = 0  # from ticks to stamps
        self._ready = False
        self._syncing = False
        self._unsynced = False
        self._wrote_at = self._synced_at = self._moved_at = time.monotonic()
        self._paid: dict[int, int] = {}
        self.all_wanted = False
        self._writes = FaultLog("the disk tier can not write: %s", "the disk tier writes again")
        self._syncs = FaultLog("the disk tier can not sync: %s", "the disk tier syncs again")
        self._pages_failed = False
        self._looked_at = 0.0
        self.refusal = ""
        self.device_bytes = 0
        self.at_work = Busy()

    @property
    def in_flight(self) -> int:
        """Pages that are being written now."""
        return sum(map(len, self._in_flight.values())) // 4

    @property
    def trouble(self) -> str:
        """Why the last write that tried to change the disk, or the last sync, failed; "" if neither did."""
        return self._writes.reason or self._syncs.reason

    @property
    def ready(self) -> bool:
        """Whether there is a worker that takes orders."""
        return self._ready

    def begin(self, drops: bytes, newest: int = 0) -> int:
        """The worker is ready for orders. What was to leave the disk when the last one died still has to.

        drops: keys that leave it first of all; the order by which the last of them goes, 0 where there are none.
        newest: the latest stamp on the disk.
        """
        self._offset = self._offset or _offset(newest)
        self._owner.disk_drop(self._lost_drops)
        self._lost_drops = b""
        self._ready = True
        self.try_again()
        return self._drop(drops) if drops else 0

    def try_again(self) -> None:
        """What went wrong before is forgotten."""
        self._forget_trouble()
        self.refusal = ""

    def _forget_trouble(self) -> None:
        self._writes.forget()
        self._syncs.forget()

    def lost(self) -> None:
        """The worker is gone, with all its orders; the index has put them back already."""
        self._ready = self._syncing = self._unsynced = False
        self._in_flight.clear()
        self.at_work.note(0)
        self._paid.clear()
        self._lost_drops += b"".join(self._dropping.values())
        self._dropping.clear()
        self._forget_trouble()  # why there is no worker is more than what it could not write

    def drop_now(self) -> int:
        """What is to leave the disk is ordered to: the order after which all of it has left; 0: it has already."""
        drops = self._owner.disk_drops()
        return self._drop(drops) if drops else max(self._dropping, default=0)

    @property
    def writing(self) -> bool:
        """Whether pages are being written, and nothing is wrong with that."""
        return bool(self._in_flight) and not self.trouble and not self.stalled()

    @property
    def busy(self) -> bool:
        """Whether something is being written or synced, or was not synced."""
        return bool(self._in_flight) or self._syncing or self._unsynced

    def look(self) -> None:
        """Orders what it is time to write. Cheap: for after every reservation."""
        while self._ready and len(self._in_flight) < _IN_FLIGHT and self._due() and self._order():
            pass

    def tidy(self) -> None:
        """What is to leave the disk, and what is to be synced; a few times a second."""
        if not self._ready:
            return
        self.look()
        drops = self._owner.disk_drops()
        if drops:
            self._drop(drops)
        self._sync_if_due()
        self._forget_if_done()

    def sync_soon(self) -> None:
        """Syncs as soon as nothing is being written."""
        if self._ready and self._unsynced and not self._in_flight and not self._syncing:
            self._sync()

    def wrote(self, report: Wrote) -> None:
        """The worker has carried out an order. Raises ProtocolError if there was no such order."""
        entries = self._in_flight.pop(report.number, None)
        if entries is None or len(entries) != 4 * len(report.stored):
            raise ProtocolError("pages that were not to be written")
        self.at_work.note(len(self._in_flight))
        dropped = self._dropping.pop(report.number, None)
        point("behind.heard")
        self._owner.end_orders(entries, report.stored.translate(_RESULT_OF_STORED))
        point("behind.ended")
        if Stored.NO_ROOM in report.stored:
            self._shrink(entries, report.stored.index(Stored.NO_ROOM))
        self.device_bytes += report.disk_bytes
        self._budget.spend(report.disk_bytes - self._paid.pop(report.number, 0))
        self._wrote_at = self._moved_at = time.monotonic()
        if report.reason or dropped or Stored.DONE in report.stored:  # others tried nothing
            self._writes.tell(report.reason)
            self._pages_failed = Stored.FAILED in report.stored
        self.refusal = report.reason or self.refusal
        self.look()

    def synced(self, report: Synced) -> None:
        """The worker has synced; what was ordered meanwhile may not be among it."""
        self._syncing = False
        self._synced_at = self._moved_at = time.monotonic()
        self._syncs.tell(report.reason)  # says nothing about writes: those before it may all have failed
        self.refusal = report.reason or self.refusal

    def _shrink(self, entries: bytes, page: int) -> None:
        """Room lies in pieces, none of which holds such a page: as much again has to come free."""
        (size,) = array("Q", self._owner.sizes(entries[4 * page : 4 * page + 4]))
        self._owner.disk_shrink(-(-size // self._frame_bytes))
        point("behind.shrunk")

    def _due(self) -> bool:
        if self.all_wanted or self._options.write == "through":
            return True
        return self._owner.frames_ahead(self._ahead) < self._ahead

    def _order(self) -> bool:
        """Orders a batch; False if there was nothing to write."""
        ordered = WriteBatch(*self._owner.order_writes(self._batch, _BATCH_PAGES))
        point("behind.chosen")
        admitted = self._admitted(ordered)
        drops = self._owner.disk_drops()
        if not len(admitted) and not drops:
            return len(ordered) > 0
        self._unsynced = True
        order = self._write(admitted, drops)
        self._paid[order.number] = 0 if self.all_wanted else sum(array("Q", admitted.sizes))
        self._put(order, admitted.entries)
        point("behind.ordered")
        return len(ordered) > 0

    def _admitted(self, ordered: WriteBatch) -> WriteBatch:
        """What the budget allows; the rest is told to leave memory unwritten."""
        if not self._budget.per_day or self.all_wanted:
            return ordered
        chains, sizes = array("I", ordered.chains), array("Q", ordered.sizes)
        verdicts = [self._budget.admits(chain, size) for chain, size in zip(chains, sizes, strict=True)]
        spared = ordered.only([i for i, admitted in enumerate(verdicts) if not admitted])
        if len(spared):
            self._owner.end_orders(spared.entries, bytes([_SPARED]) * len(spared))
        return ordered.only([i for i, admitted in enumerate(verdicts) if admitted])

    def _write(self, pages: WriteBatch, drops: bytes) -> Write:
        numbers = array("I", pages.spaces)
        used = sorted(set(numbers))
        place = {number: i for i, number in enumerate(used)}
        known = {space["number"]: space for space in self._owner.spaces()} if used else {}
        table = tuple(_space(known[number]) for number in used)
        return Write(
            next(self._numbers),
            drops,
            pages.entries,
            pages.serials,
            pages.keys,
            pages.sizes,
            array("Q", [max(0, tick + self._offset) for tick in array("Q", pages.ticks)]).tobytes(),
            array("I", [place[number] for number in numbers]).tobytes(),
            table,
        )

    def _drop(self, drops: bytes) -> int:
        """The last of the orders by which these keys go."""
        self._unsynced = True
        number = 0
        for first in range(0, len(drops), 32 * _MOST_DROPS):
            number = next(self._numbers)
            self._put(Write(number, drops[first : first + 32 * _MOST_DROPS]), b"")
            point("behind.dropped")
        return number

    def stalled(self) -> str:
        """That the disk has not done for long what it was told, "" if it has."""
        waited = time.monotonic() - self._moved_at
        if waited < STALLED_S or not (self._in_flight or self._syncing):
            return ""
        return f"the disk has not answered for {waited:.0f} s"

    def _begin_waiting(self) -> None:
        if not self._in_flight and not self._syncing:
            self._moved_at = time.monotonic()

    def _put(self, order: Write, entries: bytes) -> None:
        self._begin_waiting()
        self._in_flight[order.number] = entries
        self.at_work.note(len(self._in_flight))
        if order.drops:
            self._dropping[order.number] = order.drops
        self._send(order)

    def _sync_if_due(self) -> None:
        now = time.monotonic()
        idle = not self._in_flight and now - self._wrote_at > _IDLE_S
        if self._unsynced and not self._syncing and (idle or now - self._synced_at > self._options.sync):
            self._sync()

    def _sync(self) -> None:
        self._begin_waiting()
        self._syncing, self._unsynced = True, False
        self._send(Sync(next(self._numbers)))

    def _forget_if_done(self) -> None:
        """That pages were not written is no trouble once none is in memory alone: no write would come that ends it."""
        now = time.monotonic()
        waits = self._writes.reason and self._pages_failed and not self._in_flight
        if not waits or now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        pages, _, spared = self._owner.unwritten()
        if not pages and not spared:
            self._writes.forget()


def _offset(newest: int) -> int:
    """Returns what turns ticks into stamps, which order pages on disk beyond a restart of the host.

    What is written later is stamped later, also where the host's clock was set back or is wrong until it has a network:
    else the newest pages would be the first to leave the disk.
    """
    return max(time.time_ns(), newest) - time.monotonic_ns()


def _space(told: dict[str, object]) -> Space:
    return Space(*(told[name] for name in ("digest", "name", "page_tokens", "group", "window")))  # type: ignore[arg-type]
