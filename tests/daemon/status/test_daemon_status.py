"""Tests that the status fits into its room in the index, and is read as it was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pagetier.daemon.status.daemon_status import DaemonStatus, unpack
from pagetier.daemon.status.disk_report import BudgetReport, DeviceReport, DiskReport, Standing, summed, with_state
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.status.hint_report import HintReport
from pagetier.daemon.status.huge_page_report import HugePageReport
from pagetier.daemon.status.tenant_use import TenantUse
from pagetier.shm._core import DISK_DEVICES, SLOTS, STATUS_BYTES, TENANTS
from pagetier.tiers.base import TierState

NUMBERS = st.integers(0, 1 << 62)
NUMBERS_OF_DEVICES = ("cap", "bytes", "file_bytes", "disk_total", "device_bytes")
TENANT = TenantUse(
    pattern="",
    arena_minimum=0.25,
    arena_maximum=0.25,
    disk_minimum=0.25,
    disk_maximum=0.25,
    arena_frames=123_456,
    disk_frames=1_234_567,
)


def test_an_empty_text_is_an_empty_status() -> None:
    for text in (b"", None):
        assert unpack(text) == DaemonStatus()


@given(st.builds(DiskReport, budget=st.none() | st.builds(BudgetReport), cap=NUMBERS, last_sync=st.floats(0, 1e12)))
def test_short_reports_are_read_as_they_were_written(report: DiskReport) -> None:
    packed = DaemonStatus(disk=report).pack()
    assert len(packed) <= STATUS_BYTES
    assert unpack(packed).disk == report


@given(st.text(max_size=5000), st.text(max_size=5000), st.sampled_from(Standing))
def test_long_texts_are_cut_visibly_and_the_standing_stays(trouble: str, note: str, standing: Standing) -> None:
    disk = DiskReport(standing=standing, trouble=trouble, note=note, folder="/x" * 2000, opened=note)
    packed = DaemonStatus(disk=disk, fleet=FleetStatus(trouble=trouble)).pack()
    assert len(packed) <= STATUS_BYTES
    unpacked = unpack(packed)
    assert unpacked.disk.standing is standing
    for seen in (unpacked.disk.trouble, unpacked.fleet.trouble):
        assert seen == trouble or (seen.endswith("…") and trouble.startswith(seen[:-1]) and len(seen) < len(trouble))


def device(number: int, trouble: str, text: str = "") -> DeviceReport:
    report = DeviceReport(
        folder=f"/mnt/nvme{number}/pagetier{text}",
        standing=Standing.DOWN if trouble else Standing.OPEN,
        trouble=trouble + text,
        opened="as it was left" + text,
        note=text,
        last_sync=1795433628.5,
    )
    return replace(report, **dict.fromkeys(NUMBERS_OF_DEVICES, 1 << 50))


def status_of(devices: list[DeviceReport], tenants: int, fleet: FleetStatus) -> DaemonStatus:
    """Returns the status of a daemon with all of its reports."""
    most = 1 << 63
    return DaemonStatus(
        disk=summed(devices, "evict", BudgetReport(per_day=most, left=most, skipped_bytes=most)),
        huge_pages=HugePageReport(index=1 / 3, locks=1 / 7, arena=1 / 9),
        hints=HintReport(pages=most, applied=most, absent=most, without_effect=most, wrong=most),
        tenants=tuple(replace(TENANT, pattern=f"customer-{number}/llama-*") for number in range(tenants)),
        fleet=fleet,
        unjudged=tuple(range(SLOTS)),
        unseen=tuple(range(SLOTS)),
    )


@pytest.mark.parametrize("troubles", [0, 1, DISK_DEVICES])
def test_a_status_of_eight_devices_all_tenants_and_a_fleet_is_published_whole(troubles: int) -> None:
    trouble = "still being opened after 100 s: files are verified, or the disk has not answered"
    devices = [device(number, trouble if number < troubles else "") for number in range(DISK_DEVICES)]
    status = status_of(devices, TENANTS, FleetStatus(url="file:///shared", trouble=trouble, found=1 << 63))
    assert status.disk.cap == DISK_DEVICES << 50
    assert status.disk.standing is (Standing.DOWN if troubles == DISK_DEVICES else Standing.OPEN)
    assert troubles != 1 or status.disk.trouble == f"{devices[0].folder}: {trouble}"
    packed = status.pack()
    assert len(packed) <= STATUS_BYTES and unpack(packed) == status


def test_the_longest_texts_of_all_reports_fit() -> None:
    """The longest text is one of characters that JSON escapes, in each report that has texts."""
    longest = "\x01" * 5000
    fleet = FleetStatus(url=longest, trouble=longest, note=longest, given_up=longest, write_trouble=longest)
    devices = [device(number, longest, longest) for number in range(DISK_DEVICES)]
    status = replace(status_of(devices, 0, fleet), tenants=(replace(TENANT, pattern='"' * 100),) * TENANTS)
    packed = status.pack()
    assert len(packed) <= STATUS_BYTES
    unpacked = unpack(packed)
    assert (unpacked.tenants, unpacked.unjudged) == (status.tenants, status.unjudged)
    assert [each.standing for each in unpacked.disk.devices] == [Standing.DOWN] * DISK_DEVICES


def test_a_report_takes_over_the_state_of_the_worker() -> None:
    state = TierState(
        file_bytes=1,
        cap_bytes=2,
        used_frames=3,
        capacity=4,
        disk_free=5,
        disk_total=6,
        last_sync=7_000_000_000,
        clean=False,
        opened="new",
        damaged=8,
        note="a note",
    )
    report = with_state(DeviceReport(standing=Standing.OPEN, folder="/x", restarts=2), state)
    assert (report.file_bytes, report.cap, report.disk_free, report.disk_total) == (1, 2, 5, 6)
    assert (report.last_sync, report.clean, report.opened, report.damaged) == (7.0, False, "new", 8)
    assert (report.note, report.folder, report.restarts, report.standing) == ("a note", "/x", 2, Standing.OPEN)
