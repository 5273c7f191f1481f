"""The threads of the worker: one receives, one writes, some read."""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pagetier.shm.failpoints import point
from pagetier.tiers.base import NO_ROOM, DoubtError, ReadOutcome, Tier, TierError
from pagetier.tiers.worker.arena import WorkerArena
from pagetier.tiers.worker.channel import Channel
from pagetier.tiers.worker.tasks import ReadTask, drops_of, outgoing, read_tasks
from pagetier.tiers.worker_protocol import (
    Complete,
    HasRead,
    Holds,
    Leave,
    Opened,
    Order,
    Read,
    Stored,
    Sync,
    Synced,
    Tell,
    Tells,
    Write,
    Wrote,
)

log = logging.getLogger("pagetier.tier")

READERS: Final = 4


class Worker:
    """Serves one open tier until the daemon ends it or is gone."""

    def __init__(self, tier: Tier, memory: WorkerArena, channel: Channel) -> None:
        self._tier = tier
        self._memory = memory
        self._channel = channel
        self._writes: queue.SimpleQueue[Write | Sync | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(READERS, "pagetier-read")
        self._writer = threading.Thread(target=self._write_all, name="pagetier-write", daemon=True)
        self._broken = ""

    def report(self) -> None:
        """Reports the pages in the tier."""
        self._channel.send(Opened(self._tier.room, self._tier.state()))
        for held in self._tier.contents():
            self._channel.send(Holds(held.keys, held.sizes, held.stamps, held.spaces, held.table))
        self._channel.send(Complete())

    def serve(self) -> None:
        """Serves until it is time to exit. Raises TierError if the tier cannot continue, DoubtError if it broke."""
        self._writer.start()
        try:
            self._obey()
        finally:  # nothing uses the tier any more when it is closed
            self._writes.put(None)
            self._writer.join()
            self._readers.shutdown()
        point("worker.ended")
        if self._broken:
            raise DoubtError(self._broken)

    def _obey(self) -> None:
        while (order := self._channel.receive()) is not None and not isinstance(order, Leave):
            if self._broken:
                return
            self._take(order)

    def _take(self, order: Order) -> None:
        match order:
            case Write() | Sync():
                self._writes.put(order)
            case Read():
                for task in read_tasks(order):
                    self._readers.submit(self._read_or_end, task)
            case Tell():
                self._channel.send(Tells(self._tier.state()))
            case _:
                log.warning("ignoring an unexpected message: %s", type(order).__name__)

    def _write_all(self) -> None:
        while (order := self._writes.get()) is not None:
            try:
                self._channel.send(self._write(order) if isinstance(order, Write) else self._sync(order))
            except Exception as error:  # noqa: BLE001  py-lmdb raises SystemError, too: a thread must not end without a report
                self._break(error)
                return

    def _break(self, error: Exception) -> None:
        """Ends the worker after an unexpected failure; the next worker verifies the tier."""
        self._tier.distrust()
        self._broken = str(error) if isinstance(error, TierError) else f"{type(error).__name__}: {error}"
        self._channel.end()

    def _write(self, order: Write) -> Wrote:
        with self._memory.pinned(order.entries, order.serials) as there:
            point("worker.pinned")
            pages = outgoing(order, there, self._memory)
            written = self._tier.write(drops_of(order), pages)
            point("worker.written")
        point("worker.unpinned")
        results = map(_stored, written.stored, written.reasons)
        stored = bytes(next(results) if here else Stored.GONE for here in there)
        reason = next((why for why in written.reasons if why not in ("", NO_ROOM)), "") or written.undropped
        return Wrote(order.number, stored, reason, written.disk_bytes)

    def _sync(self, order: Sync) -> Synced:
        self._tier.sync()
        point("worker.synced")
        self._channel.send(Tells(self._tier.state()))
        return Synced(order.number, "")

    def _read_or_end(self, task: ReadTask) -> None:
        try:
            self._read(task)
        except Exception as error:  # noqa: BLE001  its pages would be pending as long as this process lives
            self._break(error)

    def _read(self, task: ReadTask) -> None:
        """Reads the pages of a task on one thread; whatever happens to a page, its part is published or given up."""
        read, damaged, reason = bytearray(len(task)), b"", ""
        for page in range(len(task)):
            incoming = task.incoming(page, self._memory)
            result = self._tier.read(incoming)
            if result.outcome is ReadOutcome.EXACT:
                read[page] = self._memory.publish(task.entries[page], task.serials[page])
                continue
            reason = reason or result.reason
            if result.outcome is not ReadOutcome.FAILED:
                damaged += incoming.key
            self._memory.abandon(task.entries[page], task.serials[page])
        point("worker.has_read")
        self._channel.send(HasRead(task.number, task.first, bytes(read), damaged, reason))


def _stored(done: bool, reason: str) -> Stored:  # noqa: FBT001  a tier says so
    if done:
        return Stored.DONE
    return Stored.NO_ROOM if reason == NO_ROOM else Stored.FAILED
