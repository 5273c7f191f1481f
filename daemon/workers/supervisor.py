"""Keeps a worker running: restarts it when it ends, each time after a longer pause if it did not last.

The life of one worker, in this order (`_run_once`):

1. A process is started, or connects, and is attached to a slot of the index, like an engine. Only then it is sent the
   segments: whatever it does to them from now on is attributed to its slot. The first disk workers are started before
   there are segments, to import their modules by then.
2. The handler learns its slot, before the worker can send a report.
3. The worker is sent its configuration and reports to the handler, until its process ends. A connection that closes, an
   invalid report or a timeout only lead to its end; they never count as its end, since a process that runs may still
   write into frames.
4. The process has ended, as its pidfd says: nothing of it accesses the segments any more. Now the handler frees the
   slot with everything that the worker had pinned or was granted (`WorkerHandler.ended`). The next worker may start.

So two workers never have the same files open, and no frame is given away that a worker may still fill.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final, Protocol

from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.child_environ import environ_without_credentials
from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.workers.worker_link import ChildWorkers, WorkerSource
from pagetier.daemon.workers.worker_process import CommandSender, WorkerProcess
from pagetier.shm._core import ShmError
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.segments import Segments
from pagetier.shm.slot_locks import UNLOCKED, new_lock
from pagetier.tiers.worker_protocol import WORKER_BUILD, FleetOptions, Leave, Report, Serve, ServeFleet, Trust

log = logging.getLogger(__name__)

# The names of the workers' attachments, whose token is 0.
DISK_WORKER: Final = "disk tier"
FLEET_WORKER: Final = "fleet"
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 30.0
LASTING_S: Final = 2.0
LEAVING_S: Final = 10.0
_DYING_S: Final = 1.0
STEADY_S: Final = 60.0
# How far the next worker trusts the files, by the number of consecutive crashes within STEADY_S of a start. The first
# may be damage that a verification finds. If workers crash on verified files, too, the contents are discarded: a cache
# that is empty is better than one that never opens.
_TRUST: Final = (Trust.AS_LEFT, Trust.PROVEN, Trust.PROVEN, Trust.NOTHING)


class WorkerHandler(Protocol):
    """The receiver of the supervisor's events and of the worker's reports, on the loop's thread."""

    def started(self, slot: int, send: CommandSender) -> None:
        """A worker has started in this slot and takes commands by `send`; its reports follow."""

    def hear(self, report: Report) -> None:
        """The worker sent a report. Raises ProtocolError if it is invalid now, which ends the worker."""

    def ended(self, slot: int, why: str) -> None:
        """The worker has ended and accesses nothing any more."""

    def failed(self, why: str) -> None:
        """No worker could be started; the supervisor tries again later."""


class Supervisor:
    """Runs the worker from start() to stop(). On the loop's thread only.

    Commands and reports pass between the handler and the worker, without the supervisor.

    Attributes:
        leaving: The worker is not restarted when it ends, because the daemon stops or its device was removed.
        renewing: The worker ends to make way for one with another size.
        restarts: How often the worker was restarted.
        populated: The worker may map all of the arena ahead of use.
        discards: The worker may discard pages that only other settings read.
    """

    def __init__(
        self,
        segments: Segments,
        options: DeviceOptions | FleetOptions,
        handler: WorkerHandler,
        loop: asyncio.AbstractEventLoop,
        source: WorkerSource | None = None,
    ) -> None:
        """Takes `source`, which provides the workers; None: they are children of this process."""
        self._source = source or ChildWorkers(environ_without_credentials())
        self._segments = segments
        self._options = options
        self._handler = handler
        self._loop = loop
        self._worker: WorkerProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self.leaving = False
        self.renewing = False
        self._crashes = 0
        self._doubt = Trust.AS_LEFT  # what the last failing worker reported, until another one has opened the tier
        self.restarts = 0
        self.populated = False
        self.discards = False

    def start(self) -> None:
        """Starts a worker and keeps one running from now on."""
        self._task = self._loop.create_task(self._keep_running())

    @property
    def has_worker(self) -> bool:
        """Whether there is a worker process, in whatever state."""
        return self._worker is not None

    @property
    def goes_on(self) -> bool:
        """Whether another worker will follow when this one has ended."""
        return not self.leaving and self._task is not None and not self._task.done()

    async def stop(self, timeout: float) -> bool:
        """Asks the worker to leave, and kills it if it has not ended within `timeout` seconds.

        Returns:
            Whether it has ended by itself, or there was none.
        """
        self.leaving = True
        worker, task, in_time = self._worker, self._task, True
        if worker is not None:
            worker.send(Leave())  # after its commands, so that it completes them and syncs
            await asyncio.wait([worker.ended], timeout=timeout)
            in_time = worker.ended.done()
            worker.kill()
            await asyncio.wait([worker.ended], timeout=_DYING_S)  # a hung disk may keep it from dying
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._source.close()
        return in_time

    async def retire(self, hangs: Callable[[str], None]) -> None:
        """Ends the worker for good, after its commands, and returns when it has ended.

        A disk that hangs may keep a killed worker from dying, for any time. Until then it may access its frames. So
        `hangs` is called with this reason, and no report of the worker follows.
        """
        self.leaving = True
        if self._worker is not None:
            self._worker.send(Leave())
            self._loop.call_later(LEAVING_S, self._hurry, self._worker)
            self._loop.call_later(LEAVING_S + _DYING_S, self._let_hang, self._worker, hangs)
        elif self._task is not None:
            self._task.cancel()  # it waits before it starts the next worker
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def renew(self, options: DeviceOptions | FleetOptions) -> None:
        """Replaces the worker by one with these options, after it has completed its commands."""
        self._options = options
        worker = self._worker
        if worker is not None:
            self.renewing = True
            worker.send(Leave())
            self._loop.call_later(LEAVING_S, self._hurry, worker)

    def _hurry(self, worker: WorkerProcess) -> None:
        """Kills the worker if a hung disk has kept it from leaving."""
        if worker is self._worker:
            worker.kill()

    def _let_hang(self, worker: WorkerProcess, hangs: Callable[[str], None]) -> None:
        if worker is self._worker:
            worker.abandon()
            hangs("its worker cannot end before the disk answers")

    def replace(self, why: str) -> None:
        """Kills the worker for this reason. Another one follows."""
        if self._worker is not None:
            self._worker.give_up(why)

    def abandon(self) -> None:
        """Kills the worker without waiting for its commands: the next daemon's worker finds the files as they are."""
        self.leaving = True
        self._source.close()
        if self._task is not None:
            self._task.cancel()
        if self._worker is not None:
            self._worker.abandon()

    async def _keep_running(self) -> None:
        pause = FIRST_PAUSE_S
        # A worker that is replaced on purpose (`renewing`) is followed at once and is no restart. Every other end is
        # followed after a pause, which grows while workers end soon after their start: files or a disk that cannot be
        # used must not keep the host busy with starts.
        while not self.leaving:
            began = self._loop.time()
            try:
                await self._run_once()
            except OSError as error:
                self._handler.failed(f"its worker cannot be started: {error}")
            if self.leaving:
                return
            if self.renewing:
                self.renewing = False
                continue
            lasted = self._loop.time() - began > LASTING_S
            pause = FIRST_PAUSE_S if lasted else min(2 * pause, LONGEST_PAUSE_S)
            self.restarts += 1
            await loop_clock.pause(pause)

    async def _run_once(self) -> None:
        link = await self._source.next()
        began = self._loop.time()
        worker = WorkerProcess(self._loop, self._handler.hear, link)
        slot = self._attach(worker)
        point("disk.attached")
        if slot < 0:
            worker.kill()
            await asyncio.wait([worker.ended])
            raise OSError("all slots are in use")
        self._worker = worker
        self._handler.started(slot, worker.send)
        try:
            await self._serve(worker, slot)
            await asyncio.wait([worker.ended])  # awaiting the future itself would end it when this task is cancelled
        finally:
            self._worker = None
            if not worker.ended.done():
                # The task was cancelled, since the daemon leaves. The process may still run, so its slot stays taken:
                # the next daemon frees it when the process has ended.
                worker.abandon()
            else:
                self._count_crash(worker, self._loop.time() - began)
                self._keep_doubt(worker)
                self._handler.ended(slot, self._why_ended(worker))

    def _count_crash(self, worker: WorkerProcess, lasted: float) -> None:
        if not worker.crashed or lasted > STEADY_S:
            self._crashes = 0
        self._crashes += worker.crashed

    def _keep_doubt(self, worker: WorkerProcess) -> None:
        """Remembers how far a worker mistrusted the files, until one opens them: those in between may just crash."""
        if worker.opened:
            self._doubt = Trust.AS_LEFT
        if worker.failure is not None:
            self._doubt = max(self._doubt, worker.failure.trust)

    def _why_ended(self, worker: WorkerProcess) -> str:
        if worker.failure is not None and worker.failure.reason:
            return worker.failure.reason
        return "it is being opened with another size" if self.renewing else f"its worker {worker.death}"

    def _attach(self, worker: WorkerProcess) -> int:
        process = worker.process
        name = FLEET_WORKER if isinstance(self._options, FleetOptions) else DISK_WORKER
        return self._segments.owner.attach(
            process.pid, os.geteuid(), process.started, 0, name, process.kernel_id, new_lock()
        )

    async def _serve(self, worker: WorkerProcess, slot: int) -> None:
        try:
            descriptors = self._segments.slot_descriptors(slot)
            if not self._segments.owner.lock_of(slot):
                log.warning(UNLOCKED, slot, extra=event("slot_unlocked", slot=slot))
        except (OSError, ShmError) as error:
            worker.give_up(f"cannot receive the segments: {error}")
            return
        try:
            await worker.serve(self._command(slot), descriptors)
        except ConnectionError:  # it has closed its end, so that its exit code says more
            worker.expect_end()
        except OSError as error:
            worker.give_up(f"cannot receive its commands: {error}")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _command(self, slot: int) -> Serve | ServeFleet:
        options = self._options
        if isinstance(options, FleetOptions):
            return ServeFleet(slot, options, self.populated, WORKER_BUILD)
        trust = max(self._doubt, _TRUST[min(self._crashes, len(_TRUST) - 1)])
        return Serve(
            slot,
            str(options.path),
            options.size,
            options.environments,
            self.populated,
            options.store,
            trust,
            options.compress,
            self.discards,
            WORKER_BUILD,
        )
