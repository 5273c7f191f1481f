"""Tests that a status which is damaged at any byte is shown or left out, and that no reader fails."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from anonymous_segments import Memory
from numbered_pages import GEOMETRY
from pagetier.daemon.cli.stats import one_line
from pagetier.daemon.cli.tables import show_snapshot
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.daemon.status.daemon_status import DaemonStatus
from pagetier.daemon.status.disk_report import DeviceReport, DiskReport, Standing, summed
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.status.phase import Phase, PhaseProgress
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.daemon.status.tenant_use import TenantUse
from pagetier.shm._core import Observer, Owner

# These break the JSON, make a number huge, a text longer or shorter, or are no UTF-8.
BYTES = b'9"\\-e\0\xff'
TENANT = TenantUse(
    pattern="a/*",
    arena_minimum=0.25,
    arena_maximum=0.5,
    disk_minimum=0.0,
    disk_maximum=1.0,
    arena_frames=123,
    disk_frames=456,
)
DEVICE = DeviceReport(folder="/mnt/nvme0", standing=Standing.OPEN, cap=1 << 40, bytes=1 << 30, last_sync=1795433628.5)
STATUS = DaemonStatus(
    progress=PhaseProgress(Phase.SERVING, 1, 1),
    disk=summed([DEVICE, msgspec.structs.replace(DEVICE, trouble="it hangs")], "evict", None),
    tenants=(TENANT,),
    fleet=FleetStatus(url="file:///shared", trouble="it is away", found=5),
    unjudged=(1,),
    unseen=(2,),
)


@pytest.fixture
def index() -> Iterator[tuple[Owner, Observer]]:
    memory = Memory(GEOMETRY)
    owner = memory.adopted()
    yield owner, Observer(*memory.descriptors[:2])
    memory.close()


def damaged(text: bytes) -> Iterator[bytes]:
    """Yields the text with each byte replaced by each of BYTES, and with one of its bits flipped."""
    chance = random.Random(1)
    for at, byte in enumerate(text):
        for other in {*BYTES, byte ^ 1 << chance.randrange(8)} - {byte}:
            yield text[:at] + bytes([other]) + text[at + 1 :]


def test_a_status_that_is_damaged_at_any_byte_is_shown_or_unknown(
    index: tuple[Owner, Observer], capsys: pytest.CaptureFixture[str]
) -> None:
    owner, observer = index
    phases = Counter[Phase]()
    for text in damaged(STATUS.pack()):
        owner.publish_status(text)
        snapshot = take_snapshot(observer)
        phases[snapshot.daemon.phase] += 1
        assert one_line(snapshot) and msgspec.json.encode(snapshot)
        if phases[Phase.SERVING] % 50 == 1:
            show_snapshot(snapshot, Path("/socket"))
    assert "pagetier on /socket" in capsys.readouterr().out
    assert phases[Phase.UNKNOWN] > 1000 and phases[Phase.SERVING] > 1000


def test_a_cut_text_is_unknown(index: tuple[Owner, Observer]) -> None:
    owner, observer = index
    text = STATUS.pack()
    for end in range(1, len(text)):
        owner.publish_status(text[:end])
        assert take_snapshot(observer).daemon.phase_text == "unknown"


def test_the_next_report_that_is_news_replaces_a_damaged_status(index: tuple[Owner, Observer]) -> None:
    owner, observer = index
    publisher = StatusPublisher(owner)
    publisher.note_progress(PhaseProgress(Phase.SERVING))
    owner.publish_status(b"\xff" * 100)
    assert take_snapshot(observer).daemon.phase is Phase.UNKNOWN
    publisher.note_disk(DiskReport(folder="/x"))
    assert take_snapshot(observer).daemon.phase is Phase.SERVING
