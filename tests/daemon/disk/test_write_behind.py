"""Tests that a fault of writes ends with a successful write, not with a sync, and is reported until then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from anonymous_segments import Memory, attach
from disk_without_workers import disk_tier
from numbered_pages import GEOMETRY, store
from pagetier.daemon.common import loop_clock
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.schema import Config
from pagetier.daemon.disk.commands_in_flight import _IDLE_S
from pagetier.daemon.disk.disk_device import DiskDevice
from pagetier.daemon.disk.disk_flush import _ASKED_AGAIN_S
from pagetier.daemon.disk.write_behind import _RECHECK_S
from pagetier.daemon.status.disk_report import Standing
from pagetier.daemon.workers.supervisor import LEAVING_S
from pagetier.daemon.workers.worker_process import WorkerProcess
from pagetier.shm import clock
from pagetier.shm._core import Owner, Session, TierFlag, WriteRule
from pagetier.shm.page_rows import PAGES_TO_WRITE
from pagetier.tiers.worker_protocol import Command, Leave, Stored, Sync, Synced, Write, Wrote
from virtual_time_loop import OwnTimeLoop

YEAR_NS = 366 * 86_400 * 10**9
FULL = "the file system is full"
SYNC_S = 5.0


class Scene:
    """A disk tier with one device, whose worker is the test."""

    def __init__(self, owner: Owner, session: Session, newest: int, folders: str, loop: OwnTimeLoop) -> None:
        self.owner, self._session = owner, session
        self._commands: list[Command] = []
        paths = tuple(Path("/") / folder for folder in folders)
        options = DiskOptions(path=paths, size=(1 << 30,), write="through", sync=SYNC_S)
        self.tier = disk_tier(owner, Config(disk=options), loop)
        self.write_behind = self.tier.write_behind
        self.device, *self.others = self.tier._devices
        self.begin(newest)

    def begin(self, newest: int) -> None:
        """Starts a worker whose disk has this latest stamp."""
        self.owner.disk_open(1000, WriteRule.THROUGH)
        self.slot = attach(self.owner, 0)
        self.device.started(self.slot, self._commands.append)
        self.device.begin(b"", newest)

    def store(self, *numbers: int) -> None:
        store(self.owner, self._session, list(numbers))
        self.owner.settle()

    def stamps(self) -> list[int]:
        """Returns the stamps of all pages to write."""
        self.write_behind.tidy()
        return [
            page.stamp
            for command in self._commands
            if isinstance(command, Write)
            for page in PAGES_TO_WRITE.read(command.pages)
        ]

    def write(self, result: Stored, reason: str = "") -> None:
        """Completes all commands with this result."""
        self.write_behind.tidy()
        commands = [command for command in self._commands if isinstance(command, Write)]
        self._commands.clear()
        assert commands
        for command in commands:
            self.device.hear(Wrote(command.number, bytes([result]) * PAGES_TO_WRITE.count(command.pages), reason, 0))

    def sync(self, reason: str = "") -> None:
        self.write_behind.sync_soon()
        self.synced(reason)

    def syncs(self) -> bool:
        """Returns whether the worker is asked to sync now."""
        self.write_behind.tidy()
        return any(isinstance(command, Sync) for command in self._commands)

    def synced(self, reason: str = "") -> None:
        """Completes the sync."""
        (command,) = [command for command in self._commands if isinstance(command, Sync)]
        self._commands.clear()
        self.device.hear(Synced(command.number, reason))


@pytest.fixture
def newest() -> int:
    """The latest stamp on the disk."""
    return 0


@pytest.fixture
def folders() -> str:
    """The folder of each device, a letter each."""
    return "d"


@pytest.fixture
def scene(newest: int, folders: str, virtual_time: OwnTimeLoop) -> Iterator[Scene]:
    memory = Memory(GEOMETRY)
    owner = memory.adopted()
    slot = attach(owner, 1)
    session = memory.session(slot)
    yield Scene(owner, session, newest, folders, virtual_time)
    session.retire()
    owner.reap(slot)
    assert owner.check_integrity() == []
    memory.close()


def test_a_sync_does_not_clear_a_fault_of_writes(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        scene.store(1, 2)
        scene.write(Stored.FAILED, FULL)
        header = scene.owner.header()
        assert (header.disk_failed, header.disk_skipped) == (2, 0), "pages that could not be written"
        scene.sync()
        assert scene.write_behind.trouble == FULL
        assert caplog.messages == [f"the disk tier in /d cannot write: {FULL}"]
        scene.store(3)
        scene.write(Stored.DONE)
        assert scene.write_behind.trouble == ""
    assert caplog.messages[1:] == ["the disk tier in /d writes again"]


def test_a_write_does_not_clear_a_fault_of_syncs(scene: Scene) -> None:
    for number, (reason, reported) in enumerate([("no sync", "no sync"), ("", "")]):
        scene.store(number)
        scene.write(Stored.DONE)
        scene.sync(reason)
        assert scene.write_behind.trouble == reported


@pytest.mark.parametrize("result", [Stored.GONE, Stored.NO_ROOM])
def test_an_order_that_wrote_nothing_does_not_clear_a_fault(scene: Scene, result: Stored) -> None:
    scene.store(1)
    scene.write(Stored.FAILED, FULL)
    scene.store(2)
    scene.write(result)
    assert scene.write_behind.trouble == FULL


def test_a_device_is_synced_when_it_is_idle_or_was_not_synced_for_long(scene: Scene, virtual_time: OwnTimeLoop) -> None:
    scene.store(1)
    scene.write(Stored.DONE)
    virtual_time.passes(0.99 * _IDLE_S)
    assert not scene.syncs()
    virtual_time.passes(0.02 * _IDLE_S)
    assert scene.syncs(), "it is idle"
    scene.synced()
    for number in range(2, 2 + round(SYNC_S)):
        virtual_time.passes(0.99)
        assert not scene.syncs()
        scene.store(number)
        scene.write(Stored.DONE)
    virtual_time.passes(0.99)
    assert scene.syncs(), "it is never idle"


def test_a_device_that_does_not_answer_is_named_after_a_while(scene: Scene, virtual_time: OwnTimeLoop) -> None:
    virtual_time.passes(20.0)
    scene.store(1)
    scene.write_behind.tidy()
    virtual_time.passes(9.9)
    assert not scene.device.commands.stalled() and not scene.device.paused
    virtual_time.passes(0.1)
    assert scene.device.commands.stalled() == "the disk has not answered for 10 s" and scene.device.paused
    scene.write(Stored.DONE)
    assert not scene.device.commands.stalled()


def test_a_flush_to_disk_ends_when_no_client_polls(scene: Scene, virtual_time: OwnTimeLoop) -> None:
    flush = scene.tier.flush
    flush.ask(0)
    for seconds, goes_on in ((0.99 * _ASKED_AGAIN_S, True), (0.02 * _ASKED_AGAIN_S, False)):
        virtual_time.passes(seconds)
        flush.end_when_due()
        assert scene.write_behind.flush_all is goes_on


def test_a_retry_clears_the_reason_but_logs_no_recovery(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        scene.store(1)
        scene.write(Stored.FAILED, FULL)
        scene.write_behind.try_again()
        assert scene.write_behind.trouble == ""
        scene.sync()
    assert caplog.messages == [f"the disk tier in /d cannot write: {FULL}"]


def test_a_fault_of_writes_ends_when_no_page_is_left_unwritten(scene: Scene, virtual_time: OwnTimeLoop) -> None:
    virtual_time.passes(_RECHECK_S)
    scene.store(1)
    scene.write(Stored.FAILED, FULL)
    scene.write_behind.tidy()
    assert scene.write_behind.trouble == FULL, "the page is in memory only"
    for space in scene.owner.spaces():
        scene.owner.flush(space.number, TierFlag.BOTH)
    virtual_time.passes(0.99 * _RECHECK_S)
    scene.write_behind.tidy()
    assert scene.write_behind.trouble == FULL, "the whole index is walked for it"
    virtual_time.passes(0.01 * _RECHECK_S)
    scene.write_behind.tidy()
    assert scene.write_behind.trouble == ""


def test_the_end_of_a_worker_clears_its_fault(scene: Scene) -> None:
    scene.store(1)
    scene.write(Stored.FAILED, FULL)
    scene.device.ended(scene.slot, "its worker ended")
    assert (scene.write_behind.trouble, scene.write_behind.refusal) == ("", FULL)


@pytest.mark.parametrize(
    "newest", [0, int(clock.date() * 1e9) + 3 * YEAR_NS], ids=["empty", "written before the clock was set back"]
)
def test_later_writes_get_later_stamps(scene: Scene, newest: int) -> None:
    began = max(int(clock.date() * 1e9), newest)
    scene.store(1, 2)
    assert len(scene.stamps()) == 2
    assert all(began <= stamp < began + YEAR_NS for stamp in scene.stamps())
    before = scene.stamps()
    scene.device.ended(scene.slot, "its worker ended")
    scene.begin(max(before) + YEAR_NS)
    assert sorted(scene.stamps()[2:]) == sorted(before), "one daemon has one offset"


class TwoDevices(Scene):
    """A disk tier with a second device of eight frames, whose worker is the test, too."""

    def __init__(self, owner: Owner, session: Session, loop: OwnTimeLoop) -> None:
        super().__init__(owner, session, 0, "de", loop)
        (self.other,) = self.others
        self.of_other: list[Command] = []
        owner.disk_open(8, WriteRule.THROUGH, 1)
        self.other.started(attach(owner, 0), self.of_other.append)
        self.other.begin(b"")

    def batches(self) -> tuple[int, int]:
        """Returns how many pages were sent to each device."""
        return self.device.commands.pages, self.other.commands.pages

    def end(self, device: DiskDevice, result: Stored, reason: str = "") -> None:
        """Completes the first command of a device with this result."""
        commands = self._commands if device is self.device else self.of_other
        command = commands.pop(0)
        assert isinstance(command, Write)
        report = Wrote(command.number, bytes([result]) * PAGES_TO_WRITE.count(command.pages), reason, 0)
        device.hear(report)


@pytest.fixture
def two(scene: Scene, virtual_time: OwnTimeLoop) -> TwoDevices:
    scene.owner.disk_close()
    return TwoDevices(scene.owner, scene._session, virtual_time)


def test_pages_of_a_device_that_fails_go_to_another_one(two: TwoDevices, virtual_time: OwnTimeLoop) -> None:
    two.store(1)
    two.write_behind.tidy()
    first, other = (two.device, two.other) if two.device.commands.pages else (two.other, two.device)
    two.end(first, Stored.FAILED, FULL)
    assert other.commands.pages == 1 and first.commands.pages == 0 and first.health.trouble == FULL
    assert two.write_behind.trouble == "", "the page did not fail: another device takes it"
    two.end(other, Stored.DONE)
    two.store(2, 3)
    two.write_behind.tidy()
    assert other.commands.pages and not first.commands.pages, "a device that failed is left out for a while"
    virtual_time.passes(0.99)
    assert first.paused
    virtual_time.passes(0.01)
    two.store(4, 5, 6)
    two.write_behind.tidy()
    assert first.commands.pages, "it is tried again"
    two.end(first, Stored.FAILED, FULL)
    virtual_time.passes(1.99)
    assert first.paused, "the pause doubles"
    virtual_time.passes(0.01)
    assert not first.paused


def test_pages_that_no_device_can_write_fail(two: TwoDevices) -> None:
    two.store(1)
    two.write_behind.tidy()
    first, other = (two.device, two.other) if two.device.commands.pages else (two.other, two.device)
    two.end(first, Stored.FAILED, FULL)
    two.end(other, Stored.FAILED, FULL)
    assert two.write_behind.in_flight == 0 and two.write_behind.trouble == FULL
    assert two.owner.unwritten().skipped == 1


def test_a_full_device_waits_for_one_with_room(two: TwoDevices) -> None:
    for number in range(40):
        two.store(number)
        two.write_behind.tidy()
        for device in (two.device, two.other):
            while device.commands:
                two.end(device, Stored.DONE)
    assert two.owner.disk_device(0).pages > two.owner.disk_device(1).pages
    assert two.owner.header().disk_evicted <= 2, "the larger device has room"


@pytest.mark.parametrize("folders", ["de"])
def test_nothing_is_written_before_each_device_has_said_what_it_has(scene: Scene, virtual_time: OwnTimeLoop) -> None:
    scene.store(1)
    virtual_time.passes(9.9)
    scene.write_behind.tidy()
    assert not scene.device.commands
    virtual_time.passes(0.1)
    scene.write_behind.tidy()
    assert scene.write_behind.in_flight == 1, "a device that hangs is not waited for"


class LeavingWorker:
    """The worker of a device as its supervisor has it: it ends when the test says so, and not when it is killed."""

    def __init__(self, scene: TwoDevices, device: DiskDevice) -> None:
        self._scene, self._device = scene, device
        self.asked: list[Command] = []
        self.send = self.asked.append
        self.heard = True
        self.ended = asyncio.get_running_loop().create_future()
        device.supervisor._worker = cast("WorkerProcess", self)
        device.supervisor._task = asyncio.create_task(self._run())

    def kill(self) -> None:
        """Hangs."""

    def abandon(self) -> None:
        """Is heard no more."""
        self.heard = False

    def end(self) -> None:
        """Ends."""
        self.ended.set_result(None)

    async def _run(self) -> None:
        await asyncio.wait([self.ended])
        self._device.supervisor._worker = None
        self._device.ended(self._scene.slot, "its worker ended")


async def removed_while_it_writes(two: TwoDevices) -> LeavingWorker:
    """Removes the first device, whose worker has pages to write, by a reload."""
    two.owner.disk_open(1000, WriteRule.THROUGH, 1)
    for number in range(4):
        two.store(number)
        two.write_behind.tidy()
    assert min(two.batches()) > 0
    for device in (two.device, two.other):
        device.note(standing=Standing.OPEN)
    worker = LeavingWorker(two, two.device)
    kept = DiskOptions(path=(Path("/e"),), size=(1 << 30,), write="through", sync=SYNC_S)
    two.other.options = kept.devices[0]
    two.tier.follow(kept)
    await loop_clock.give_way()
    assert any(isinstance(command, Leave) for command in worker.asked)
    return worker


def saves(two: TwoDevices) -> bool:
    """Completes all that the second device was asked to do. Returns whether a flush to disk has ended."""
    two.tier.flush.ask(0)
    while two.of_other:
        command = two.of_other[0]
        if isinstance(command, Write):
            two.end(two.other, Stored.DONE)
        else:
            two.of_other.pop(0)
            if isinstance(command, Sync):
                two.other.hear(Synced(command.number, ""))
    return two.tier.flush.ask(1).synced


async def test_a_removed_device_that_hangs_is_not_waited_for(two: TwoDevices) -> None:
    worker = await removed_while_it_writes(two)
    assert not saves(two) and not saves(two), "pages are in memory only"
    await loop_clock.pause(LEAVING_S - 0.1)
    assert worker.heard and not saves(two)
    await loop_clock.pause(1.2)
    saves(two)
    assert saves(two) and not worker.heard, "the other device has all pages"
    assert two.owner.unwritten().pages == 0 and two.owner.disk_device(1).pages == 4
    assert not two.device.expected, "a stop does not wait for it"
    assert two.tier._devices == [two.device, two.other], "its number stays taken"
    began = loop_clock.now()
    await two.tier.stop(100.0)
    assert loop_clock.now() - began < 5.0


async def test_a_removed_device_that_answers_ends_its_commands(two: TwoDevices) -> None:
    worker = await removed_while_it_writes(two)
    assert not saves(two)
    while two.device.commands:
        two.end(two.device, Stored.DONE)
    assert two.device.ready and not two.device.accepts, "a worker that leaves ignores commands"
    two.store(4)
    assert not saves(two), "its pages are not synced before its worker has ended"
    worker.end()
    await loop_clock.pause(0.1)
    assert two.tier._devices == [two.other]
    saves(two)
    assert saves(two)
    assert two.owner.disk_device(1).pages == 5, "they are in memory, and went to the other device"
