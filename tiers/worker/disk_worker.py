"""The threads of a disk worker: one receives, one writes, some read.

Requests wait for reads, so these have the priority of an engine: at a lower one they get hardly any processor time
beside engines that use all cores. Nothing waits for writes, which have a lower priority.
"""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pagetier.shm.failpoints import point
from pagetier.shm.process import lower_priority
from pagetier.tiers.base import Catalogue, DoubtError, TierError
from pagetier.tiers.worker.arena import WorkerArena
from pagetier.tiers.worker.channel import Channel
from pagetier.tiers.worker.moved_pages import ReadTask, read_pages, read_tasks, write_pages
from pagetier.tiers.worker.ordered_pages import OrderedPages
from pagetier.tiers.worker_protocol import (
    WORKER_BUILD,
    Command,
    Complete,
    GetState,
    Leave,
    Opened,
    Read,
    SavedLookups,
    SaveLookups,
    StateReport,
    Sync,
    Synced,
    Write,
)

log = logging.getLogger("pagetier.tier")

READERS: Final = 4


class DiskWorker:
    """Serves one open tier until the daemon ends it or is gone."""

    def __init__(self, tier: Catalogue, memory: WorkerArena, channel: Channel) -> None:
        self._tier = tier
        self._memory = memory
        self._channel = channel
        self._writes: queue.SimpleQueue[Write | Sync | SaveLookups | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(READERS, "pagetier-read")
        self._writer = threading.Thread(target=self._write_all, name="pagetier-write", daemon=True)
        self._broken = ""

    def report(self) -> None:
        """Lists the pages in the tier, and starts to report them. Raises DoubtError if they cannot be listed."""
        # The index needs the capacity before the first page. serve() follows, so no write changes what is being listed.
        self._channel.send(Opened(self._tier.capacity, self._tier.state(), self._tier.pages, WORKER_BUILD))
        if (lookups := self._tier.take_lookups()) is not None:
            self._channel.send(SavedLookups(lookups))
        # The daemon lets engines ask for the pages of each part at once, so another thread reports while this one
        # serves reads. It inherits the priority of this thread. Nothing waits for it: it uses no file, and sends
        # nothing once the daemon is gone.
        pages = OrderedPages(self._tier.contents())
        threading.Thread(target=self._send_all, args=(pages,), name="pagetier-report", daemon=True).start()

    def _send_all(self, pages: OrderedPages) -> None:
        try:
            for part in pages.parts():
                self._channel.send(part)
            self._channel.send(Complete())
            point("worker.reported")
        except Exception as error:  # noqa: BLE001  the daemon would wait for the rest as long as this process lives
            self._break(error)

    def serve(self) -> None:
        """Serves until it is time to exit. Raises TierError if the tier cannot continue, DoubtError if it broke."""
        self._writer.start()
        try:
            self._handle_commands()
        finally:  # nothing uses the tier any more when it is closed
            self._writes.put(None)
            self._writer.join()
            self._readers.shutdown()
        point("worker.ended")
        if self._broken:
            raise DoubtError(self._broken)

    def _handle_commands(self) -> None:
        while (command := self._channel.receive()) is not None and not isinstance(command, Leave):
            if self._broken:
                return
            self._dispatch(command)

    def _dispatch(self, command: Command) -> None:
        match command:
            case Write() | Sync() | SaveLookups():
                self._writes.put(command)
            case Read():
                for task in read_tasks(command):
                    self._readers.submit(self._read_or_end, task)
            case GetState():
                self._channel.send(StateReport(self._tier.state()))
            case _:
                log.warning("ignoring an unexpected message: %s", type(command).__name__)

    def _write_all(self) -> None:
        lower_priority()
        while (command := self._writes.get()) is not None:
            try:
                self._do(command)
            except Exception as error:  # noqa: BLE001  py-lmdb raises SystemError, too: a thread must not end without a report
                self._break(error)
                return

    def _do(self, command: Write | Sync | SaveLookups) -> None:
        match command:
            case Write():
                self._channel.send(write_pages(self._tier.write, self._memory, command))
            case Sync():
                self._channel.send(self._sync(command))
            case SaveLookups():
                self._tier.save_lookups(command.data)

    def _break(self, error: Exception) -> None:
        """Ends the worker after an unexpected failure; the next worker verifies the tier."""
        self._broken = str(error) if isinstance(error, TierError) else f"{type(error).__name__}: {error}"
        self._tier.distrust()
        self._channel.end()

    def _sync(self, command: Sync) -> Synced:
        # Writes and syncs have one thread, in the order of the commands: a sync covers all writes that were requested
        # before it. A failed sync raises DoubtError and ends the worker, since the kernel reports the error only once.
        self._tier.sync()
        point("worker.synced")
        self._channel.send(StateReport(self._tier.state()))
        return Synced(command.number, "")

    def _read_or_end(self, task: ReadTask) -> None:
        try:
            self._channel.send(read_pages(self._tier.read, self._memory, task))
        except Exception as error:  # noqa: BLE001  its pages would be pending as long as this process lives
            self._break(error)
