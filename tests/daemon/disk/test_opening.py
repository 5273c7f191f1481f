"""Tests what a device does while its worker, which is the test, reports the pages on it: by the order of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from anonymous_segments import Memory, attach
from disk_without_workers import disk_tier
from numbered_pages import GEOMETRY, content_of, key_of, keys_of, store
from pagetier.daemon.common import loop_clock
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.schema import Config
from pagetier.daemon.disk.disk_device import DiskDevice
from pagetier.daemon.index.flush_requests import FlushRequests
from pagetier.daemon.index.scan_queue import ScanQueue
from pagetier.daemon.metrics.disk_families import device_families
from pagetier.shm._core import HISTORY_BYTES, KEY_BYTES, TierFlag
from pagetier.shm.page_rows import PAGES_TO_WRITE, STORED_PAGES, StoredPage
from pagetier.shm.protocol import Fetch, Flush, Flushed, Space
from pagetier.tiers.base import StoredPages, TierState
from pagetier.tiers.worker import ordered_pages
from pagetier.tiers.worker.ordered_pages import OrderedPages
from pagetier.tiers.worker_protocol import (
    Command,
    Complete,
    HasRead,
    InventoryPart,
    Opened,
    Read,
    StateReport,
    Stored,
    Write,
    Wrote,
)
from virtual_time_loop import OwnTimeLoop

SPACE = Space(bytes(KEY_BYTES), "test", 16)
STATE = TierState(
    file_bytes=1,
    cap_bytes=1 << 30,
    used_frames=1,
    capacity=1000,
    disk_free=1,
    disk_total=1,
    last_sync=0,
    clean=True,
    opened="new",
)


class Scene:
    """A disk tier whose workers are the test, above an index with a process that stores."""

    def __init__(self, memory: Memory, folders: str, loop: OwnTimeLoop) -> None:
        self.owner = memory.adopted()
        self._session = memory.session(attach(self.owner, 1))
        paths = tuple(Path("/") / folder for folder in folders)
        options = DiskOptions(path=paths, size=(1 << 30,), write="through")
        self.tier = disk_tier(self.owner, Config(disk=options), loop)
        self.devices = self.tier._devices
        self.sent: list[list[Command]] = [[] for _ in self.devices]
        self.slots = [self._start(device) for device in self.devices]

    def _start(self, device: DiskDevice) -> int:
        slot = attach(self.owner, 0)
        device.started(slot, self.sent[device.number].append)
        return slot

    def open(self, numbers: Sequence[int], device: int = 0) -> list[InventoryPart]:
        """Reports that a worker has opened its device, and returns the parts that it would report next."""
        rows = (StoredPage(key_of(n), bytes(HISTORY_BYTES), len(content_of(n)), n + 1, 0) for n in numbers)
        self.devices[device].hear(Opened(1000, STATE, len(numbers)))
        ordered = OrderedPages([StoredPages(STORED_PAGES.pack(rows), (SPACE,))])
        return [part for part in ordered.parts() if isinstance(part, InventoryPart)]

    def lose_worker(self) -> None:
        """Ends the first worker, and starts its successor."""
        self.devices[0].ended(self.slots[0], "its worker was killed")
        self.sent[0].clear()
        self.slots[0] = self._start(self.devices[0])

    def store(self, *numbers: int) -> None:
        store(self.owner, self._session, list(numbers))
        self.owner.settle()

    def flush_all(self) -> list[str]:
        """Flushes all namespaces, and returns the answers of the tier so far."""
        answers: list[str] = []
        self.owner.flush(-1, TierFlag.BOTH)
        self.tier.flushed(None, answers.append)
        return answers

    def written(self, device: int = 0) -> set[bytes]:
        """Sends what is due. Returns the keys of the pages that a worker was asked to write so far."""
        self.tier.write_behind.tidy()
        writes = [command for command in self.sent[device] if isinstance(command, Write)]
        return {page.key for write in writes for page in PAGES_TO_WRITE.read(write.pages)}

    def complete_writes(self) -> None:
        """Reports that all commands to the first worker are done."""
        for command in list(self.sent[0]):
            assert isinstance(command, Write)
            stored = bytes([Stored.DONE]) * PAGES_TO_WRITE.count(command.pages)
            self.devices[0].hear(Wrote(command.number, stored, "", 0))


@pytest.fixture(autouse=True)
def two_pages_in_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_pages, "_PART", 2)


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory(GEOMETRY)
    yield made
    made.close()


@pytest.fixture
def scene(memory: Memory, virtual_time: OwnTimeLoop) -> Iterator[Scene]:
    made = Scene(memory, "d", virtual_time)
    yield made
    assert made.owner.check_integrity() == []


@pytest.fixture
def two(memory: Memory, virtual_time: OwnTimeLoop) -> Iterator[Scene]:
    made = Scene(memory, "de", virtual_time)
    yield made
    assert made.owner.check_integrity() == []


def hear_all(scene: Scene, parts: Sequence[InventoryPart], device: int = 0) -> None:
    for part in parts:
        scene.devices[device].hear(part)
    scene.devices[device].hear(Complete())


def test_engines_store_while_the_tier_is_read_and_what_it_has_is_not_written(scene: Scene) -> None:
    first, *others = scene.open(range(6))
    scene.devices[0].hear(first)
    assert scene.owner.header().disk_pages == 2, "a page is found once its part came"
    scene.store(1, 4, 10)
    assert scene.written() == set(), "the device may have any of them"
    hear_all(scene, others)
    assert scene.owner.header().disk_pages == 6
    assert scene.written() == {key_of(10)}


def test_the_status_says_how_many_pages_are_known(scene: Scene) -> None:
    device = scene.devices[0]
    states = []
    parts = scene.open(range(5))
    for part in parts:
        device.note()
        states.append(device.status.report.state)
        device.hear(part)
    device.note()
    states.append(device.status.report.state)
    assert [state.partition(", ")[2] for state in states] == [f"{n} of 5 pages read" for n in (0, 2, 4, 5)]
    device.hear(Complete())
    assert device.status.report.state == "open"


def test_a_flush_while_the_tier_is_read_drops_all_pages(scene: Scene) -> None:
    first, *others = scene.open(range(6))
    scene.devices[0].hear(first)
    answers = scene.flush_all()
    assert scene.owner.header().disk_pages == 0
    scene.store(3)  # a flushed page comes back as a new one
    hear_all(scene, others)
    assert scene.owner.header().disk_pages == 0
    drops, *more = scene.sent[0]
    assert isinstance(drops, Write) and sorted(drops.drops) == sorted(keys_of(range(6))) and not drops.pages
    assert more == []
    assert scene.written() == {key_of(3)}
    assert answers, "a flush is answered although the disk is being read"


@pytest.mark.parametrize("wanted", [SPACE.name, SPACE.digest.hex()])
def test_a_flush_of_a_namespace_that_is_not_reported_yet_drops_its_pages(
    scene: Scene, virtual_time: OwnTimeLoop, wanted: str
) -> None:
    parts = scene.open(range(4))
    answers: list[Flushed] = []
    requests = FlushRequests(scene.owner, scene.tier, ScanQueue(virtual_time))
    requests.serve(Flush(1, wanted, None), answers.append)
    assert "leave the disk when it is back" in answers[0].trouble and not answers[0].namespaces
    hear_all(scene, parts)
    assert scene.owner.header().disk_pages == 0
    (drops,) = scene.sent[0]
    assert isinstance(drops, Write) and sorted(drops.drops) == sorted(keys_of(range(4)))


def test_a_flush_is_remembered_until_the_drops_are_reported(scene: Scene) -> None:
    hear_all(scene, scene.open(range(2)))
    scene.flush_all()
    scene.lose_worker()
    hear_all(scene, scene.open(range(2)))
    assert scene.owner.header().disk_pages == 0, "the first worker died before it dropped them"
    scene.complete_writes()
    scene.lose_worker()
    hear_all(scene, scene.open([7]))
    assert scene.owner.header().disk_pages == 1


def test_a_worker_that_dies_in_the_middle_leaves_nothing_and_the_next_one_reports_all(scene: Scene) -> None:
    first, *_ = scene.open(range(6))
    scene.store(1)
    scene.devices[0].hear(first)
    scene.lose_worker()
    assert scene.owner.header().disk_pages == 0
    assert scene.devices[0].status.report.expected_pages == 0
    assert scene.written() == set()
    hear_all(scene, scene.open(range(6)))
    assert scene.owner.header().disk_pages == 6
    assert scene.written() == set(), "page 1 is on disk, the second worker says"


def test_pages_leave_memory_while_the_tier_is_read(scene: Scene) -> None:
    first, second, third = scene.open(range(6))
    scene.store(1, 2, 10)
    scene.devices[0].hear(first)
    scene.owner.evict(GEOMETRY.frames, 100)
    header = scene.owner.header()
    assert (header.pages, header.disk_pages) == (0, 2), "page 2 is a miss until it is reported"
    hear_all(scene, [second, third])
    assert scene.owner.header().disk_pages == 6


def test_a_page_that_the_second_device_reports_too_leaves_it(two: Scene) -> None:
    first, *others = two.open(range(4))
    of_second = two.open(range(2, 6), 1)
    two.devices[0].hear(first)
    hear_all(two, of_second, 1)
    two.store(0, 10)
    assert two.written(1) == set(), "the first device may have any of them"
    hear_all(two, others)
    assert two.owner.header().disk_pages == 6
    assert two.written() | two.written(1) == {key_of(10)}
    drops = b"".join(command.drops for sent in two.sent for command in sent if isinstance(command, Write))
    assert sorted(drops) == sorted(keys_of([2, 3])), "the second device has reported them first"


def test_the_cap_holds_while_the_tier_is_read(scene: Scene) -> None:
    frames = sum(-(-len(content_of(number)) // GEOMETRY.frame_bytes) for number in range(20))
    parts = scene.open(range(20))
    scene.owner.disk_shrink(1000 - frames // 2)
    for part in parts:
        scene.devices[0].hear(part)
        usage = scene.owner.disk_device(0)
        assert usage.used_slots <= usage.slots == frames // 2


def test_a_device_that_is_opened_for_long_may_be_verified_or_hang(scene: Scene, virtual_time: OwnTimeLoop) -> None:
    opening = scene.devices[0]._opening
    virtual_time.passes(10.0)
    assert opening.stalled() == ""
    virtual_time.passes(1.0)
    assert opening.stalled() == "still being opened after 11 s: files are verified, or the disk has not answered"
    scene.open([])
    assert opening.stalled() == ""


def troubled(scene: Scene) -> float:
    """Sends what is due, and returns what the metrics say of the first device a second later."""
    scene.tier.tidy()
    families = device_families(scene.tier.work().report.devices, GEOMETRY.frame_bytes)
    (family,) = (family for family in families if family.name == "pagetier_device_in_trouble")
    return float(family.samples[0].value)


def test_a_device_that_hangs_while_engines_only_read_is_named_until_it_answers(
    scene: Scene, virtual_time: OwnTimeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    hear_all(scene, scene.open(range(6)))
    caplog.clear()
    virtual_time.passes(60.0)
    scene.tier.reads.ask(Fetch(1, b"".join(map(key_of, range(6))), 1.0), lambda _: None)
    (read,) = (command for command in scene.sent[0] if isinstance(command, Read))
    virtual_time.passes(9.9)
    assert not troubled(scene)
    virtual_time.passes(1.1)
    with caplog.at_level("INFO"):
        assert troubled(scene)
        assert caplog.messages == ["/d: the disk has not answered for 11 s"]
        scene.devices[0].hear(HasRead(read.number, 0, bytes(2), b"", ""))
        virtual_time.passes(9.9)
        assert not troubled(scene), "it reads, however slowly"
        scene.devices[0].hear(HasRead(read.number, 2, bytes(4), b"", ""))
        virtual_time.passes(60.0)
        assert not troubled(scene), "it has nothing to read"
        assert caplog.messages[1:] == ["/d: the disk answers again"]


def test_a_device_that_is_not_waited_for_is_closed_while_its_worker_reads(scene: Scene) -> None:
    hear_all(scene, scene.open(range(6)))
    scene.tier.reads.ask(Fetch(1, key_of(3), 1.0), lambda _: None)
    scene.devices[0].close("it hangs")
    header = scene.owner.header()
    assert header.disk_pages == 0 and header.used_frames > 0, "the worker may still write into the frames"
    assert scene.owner.check_integrity() == []
    scene.devices[0].ended(scene.slots[0], "its worker was killed")
    assert scene.owner.header().used_frames == 0


async def test_counters_do_not_fall_with_a_worker_or_a_device(two: Scene) -> None:
    """The second device, which is removed, has found three damaged pages and written bytes: it counts on."""
    for damaged in (2, 1):
        hear_all(two, two.open([], 1), 1)
        two.devices[1].hear(StateReport(msgspec.structs.replace(STATE, damaged=damaged)))
        two.devices[1].note()
        two.devices[1].ended(two.slots[1], "its worker was killed")
        two.slots[1] = two._start(two.devices[1])
    two.devices[1].device_bytes, two.devices[1].supervisor.restarts = 4096, 5
    two.devices[1].note()
    before = two.tier.work().report
    assert (before.damaged, before.device_bytes, before.restarts) == (3, 4096, 5)
    two.tier.follow(DiskOptions(path=(Path("/d"),), size=(1 << 30,), write="through"))
    await loop_clock.give_way()
    await loop_clock.give_way()
    after = two.tier.work().report
    assert len(after.devices) == 1 and (after.damaged, after.device_bytes, after.restarts) == (3, 4096, 5)
