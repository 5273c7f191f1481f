"""How the pages of a Read become tasks for the threads of a worker."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from eventually import PATIENCE_S, eventually
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.page_rows import PAGES_TO_READ, PageToRead
from pagetier.tiers.base import Incoming, ReadOutcome, ReadResult
from pagetier.tiers.fleet.object_fleet import ObjectFleet
from pagetier.tiers.worker.arena import WorkerArena
from pagetier.tiers.worker.channel import Channel
from pagetier.tiers.worker.fleet_worker import FleetWorker
from pagetier.tiers.worker.moved_pages import read_tasks
from pagetier.tiers.worker_protocol import Command, HasRead, Read, Report

KIB, MIB = 1 << 10, 1 << 20


def read_of(*sizes: int) -> Read:
    rows = (PageToRead(bytes(KEY_BYTES), size, number, number, 0, 0, 0) for number, size in enumerate(sizes))
    return Read(1, PAGES_TO_READ.pack(rows), {})


def counts(tasks: int, *sizes: int) -> list[int]:
    return [len(task.pages) for task in read_tasks(read_of(*sizes), tasks)]


@given(st.lists(st.integers(1, 9 * MIB), max_size=200), st.integers(1, 16))
def test_each_page_is_in_one_task_in_order(sizes: list[int], tasks: int) -> None:
    found = list(read_tasks(read_of(*sizes), tasks))
    assert [page.serial for task in found for page in task.pages] == list(range(len(sizes)))
    assert [task.first for task in found] == [task.pages[0].serial for task in found]
    assert all(len(task.pages) <= 64 for task in found)
    assert all(len(task.pages) == 1 or sum(page.size for page in task.pages) <= 4 * MIB for task in found)


def test_a_short_read_is_shared_and_small_pages_stay_together() -> None:
    assert counts(1, *[MIB] * 4) == [4]
    assert counts(16, *[MIB] * 4) == [1] * 4
    assert counts(16, *[256 * KIB] * 12) == [1] * 12
    assert counts(16, *[4 * KIB] * 20) == [16, 4]
    assert counts(16, *[MIB] * 44) == [2] * 22
    assert counts(16, *[MIB] * 400) == counts(1, *[MIB] * 400) == [4] * 100


class Meeting:
    """A fleet, an arena and a channel. Each page is read only while three others are, and the reads come in once."""

    def __init__(self, *commands: Command) -> None:
        self.reports: list[Report] = []
        self._commands = list(commands)
        self._together = threading.Barrier(4, timeout=PATIENCE_S)

    def read(self, page: Incoming) -> ReadResult:
        del page
        self._together.wait()
        return ReadResult(ReadOutcome.EXACT)

    def frames(self, entry: int) -> Sequence[memoryview]:
        del entry
        return ()

    def publish(self, entry: int, serial: int) -> bool:
        return entry == serial

    def receive(self) -> Command | None:
        if self._commands:
            return self._commands.pop(0)
        assert eventually(lambda: len(self.reports) == 4), self.reports
        return None

    def send(self, report: Report) -> None:
        self.reports.append(report)

    def silent_s(self) -> float:
        return 0.0

    def state(self) -> None:
        return


def test_pages_of_a_short_read_are_received_at_once() -> None:
    """One is expanded while others are received: a thread for all of them would do one after the other."""
    meeting = Meeting(read_of(*[MIB] * 4))
    fleet, memory, channel = cast(ObjectFleet, meeting), cast(WorkerArena, meeting), cast(Channel, meeting)
    worker = FleetWorker(fleet, memory, channel, PATIENCE_S)
    worker._watch = lambda: None  # type: ignore[method-assign]  # the store is not silent
    worker.serve()
    read = {report.first: report.read for report in meeting.reports if isinstance(report, HasRead)}
    assert read == dict.fromkeys(range(4), b"\1")
