"""The threads of a fleet's worker: one receives, one watches, some read and write."""

from __future__ import annotations

import logging
import threading
from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from pagetier.shm.failpoints import point
from pagetier.shm.page_rows import PAGES_TO_FIND
from pagetier.shm.process import lower_priority
from pagetier.shm.safe_event import SafeEvent
from pagetier.tiers.base import UNTRIED, FleetState, Incoming, ReadOutcome, ReadResult, TierError
from pagetier.tiers.fleet.object_fleet import ObjectFleet
from pagetier.tiers.worker.arena import WorkerArena
from pagetier.tiers.worker.channel import Channel
from pagetier.tiers.worker.moved_pages import ReadTask, read_pages, read_tasks, write_pages
from pagetier.tiers.worker_protocol import (
    WORKER_BUILD,
    Command,
    Complete,
    Find,
    FleetOpened,
    FleetReport,
    Found,
    GetState,
    Leave,
    Read,
    Write,
)

log = logging.getLogger("pagetier.tier")

READERS: Final = 8
# A reader receives a page and then expands it, while others receive: a short read needs several of them, too. Two tasks
# for each let all readers end at about the same time.
READ_TASKS: Final = 2 * READERS
WRITERS: Final = 2
QUESTIONS: Final = 8  # at once: each may open 64 connections, and hung ones must leave calls to reads and writes
SILENT_S: Final = 10.0
_WAITING: Final = 64  # questions; the daemon answers one that waits for long without the worker
_WATCH_S: Final = 0.5
_REMEMBERED: Final = 64


class FleetWorker:
    """Serves one open fleet until the daemon ends it, is gone, or the store is silent.

    The receiving thread never waits for the store, so the worker always answers GetState.
    """

    def __init__(self, fleet: ObjectFleet, memory: WorkerArena, channel: Channel, timeout_s: float) -> None:
        self._fleet = fleet
        self._memory = memory
        self._channel = channel
        self._silent_s = max(SILENT_S, 2 * timeout_s)
        self._readers = ThreadPoolExecutor(READERS, "pagetier-read")
        self._writers = ThreadPoolExecutor(WRITERS, "pagetier-write", lower_priority)
        self._lock = threading.Lock()
        self._asking = 0
        self._waiting: deque[Find] = deque(maxlen=_WAITING)
        self._given_up: deque[int] = deque(maxlen=_REMEMBERED)  # the numbers of reads of which a page failed
        self._ended = SafeEvent()
        self._broken = ""

    def report(self) -> None:
        """Reports that the fleet is open."""
        self._channel.send(FleetOpened(self._fleet.state(), WORKER_BUILD))
        self._channel.send(Complete())

    def serve(self) -> None:
        """Serves until it is time to exit. Raises TierError if the store is silent or something unexpected failed."""
        thread = threading.Thread(target=self._watch, name="pagetier-watch", daemon=True)
        thread.start()
        try:
            while (command := self._channel.receive()) is not None and not isinstance(command, Leave):
                self._dispatch(command)
        finally:
            self._ended.set()
            for threads in (self._readers, self._writers):
                threads.shutdown(wait=not self._broken, cancel_futures=True)
        point("worker.ended")
        if self._broken:
            raise TierError(self._broken)

    def _dispatch(self, command: Command) -> None:
        match command:
            case Write():
                self._submit(self._writers, partial(self._write, command))
            case Read():
                for task in read_tasks(command, READ_TASKS):
                    self._submit(self._readers, partial(self._read, task))
            case Find():
                self._find(command)
            case GetState():
                self._channel.send(FleetReport(self._fleet.state()))
            case _:
                log.warning("ignoring an unexpected message: %s", type(command).__name__)

    def _submit(self, threads: ThreadPoolExecutor, function: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                function()
            except BaseException as error:  # noqa: BLE001  its pages would be pending as long as this process lives
                self._break(f"{type(error).__name__}: {error}")

        threads.submit(guarded)

    def _break(self, why: str) -> None:
        self._broken = self._broken or why
        self._channel.end()

    def _write(self, command: Write) -> None:
        self._channel.send(write_pages(self._fleet.write, self._memory, command))

    def _read(self, task: ReadTask) -> None:
        self._channel.send(read_pages(lambda page: self._read_one(task.number, page), self._memory, task))

    def _read_one(self, number: int, page: Incoming) -> ReadResult:
        """Reads a page. After the first that failed no other of the same message is read: it would come too late."""
        if number in self._given_up:
            return ReadResult(ReadOutcome.FAILED, UNTRIED)
        result = self._fleet.read(page)
        if result.outcome is ReadOutcome.FAILED:
            self._given_up.append(number)
        return result

    def _find(self, command: Find) -> None:
        """Asks the store, or lets the question wait while QUESTIONS others are asked."""
        with self._lock:
            if self._asking == QUESTIONS:
                self._waiting.append(command)
                return
            self._asking += 1
        self._start_question(command)

    def _start_question(self, command: Find) -> None:
        """Starts a question, which is answered from the thread of the store's call."""

        def reply(sizes: array[int], why: str) -> None:
            point("fleet.located")
            self._channel.send(Found(command.number, sizes.tobytes(), why))
            self._start_waiting()

        try:
            self._fleet.start_locate(command.pages, command.table, reply)
        except TierError as error:
            reply(array("Q", [0] * PAGES_TO_FIND.count(command.pages)), str(error))

    def _start_waiting(self) -> None:
        """Asks the newest question that waits, since the time of the oldest ones may be over."""
        with self._lock:
            command = self._waiting.pop() if self._waiting else None
            self._asking -= command is None
        if command is not None:
            self._start_question(command)

    def _watch(self) -> None:
        """Reports what an administrator should know, and ends the worker if the store is silent."""
        reported = self._fleet.state()
        while not self._ended.wait(_WATCH_S):
            if self._fleet.silent_s() > self._silent_s:
                self._break(f"no call of the store has returned for {self._silent_s:g} s: restarting its client")
                return
            state = self._fleet.state()
            if _matters(state) != _matters(reported):
                self._channel.send(FleetReport(state))
                reported = state


def _matters(state: FleetState) -> tuple[int, int, int, str]:
    return state.damaged, state.foreign, state.late, state.note
