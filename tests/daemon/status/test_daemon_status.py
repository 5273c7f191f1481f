"""Tests that each report of the disk tier fits into the header, and is read as it was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pagetier.daemon.status.daemon_status import DaemonStatus, unpack
from pagetier.daemon.status.disk_report import BudgetReport, DeviceReport, DiskReport, Standing, summed, with_state
from pagetier.daemon.status.huge_page_report import HugePageReport
from pagetier.daemon.status.tenant_use import TenantUse
from pagetier.shm._core import DISK_DEVICES, STATUS_BYTES
from pagetier.tiers.base import TierState

NUMBERS = st.integers(0, 1 << 62)
TENANT = TenantUse(
    pattern="",
    arena_minimum=0.25,
    arena_maximum=0.25,
    disk_minimum=0.25,
    disk_maximum=0.25,
    arena_frames=123_456,
    disk_frames=1_234_567,
)


def test_an_empty_header_is_an_empty_report() -> None:
    for text in (b"", None):
        assert unpack(text) == DaemonStatus()


@given(st.builds(DiskReport, budget=st.none() | st.builds(BudgetReport), cap=NUMBERS, last_sync=st.floats(0, 1e12)))
def test_short_reports_are_read_as_they_were_written(report: DiskReport) -> None:
    packed = DaemonStatus(disk=report).pack()
    assert len(packed) <= STATUS_BYTES
    unpacked = unpack(packed).disk
    assert unpacked.standing is report.standing
    if max(map(len, (report.trouble, report.opened, report.note, report.folder))) < 100:
        assert unpacked == report


@given(st.text(max_size=5000), st.text(max_size=5000), st.sampled_from(Standing))
def test_long_texts_are_cut_and_the_standing_stays(trouble: str, note: str, standing: Standing) -> None:
    disk = DiskReport(standing=standing, trouble=trouble, note=note, folder="/x" * 2000, opened=note)
    packed = DaemonStatus(disk=disk).pack()
    assert len(packed) <= STATUS_BYTES
    unpacked = unpack(packed).disk
    assert unpacked.standing is standing
    assert trouble.startswith(unpacked.trouble)


@pytest.mark.parametrize(("troubles", "tenants"), [(0, 0), (1, 0), (8, 0), (0, 16)])
def test_eight_devices_fit_into_the_header(troubles: int, tenants: int) -> None:
    """What many tenants have is left out before the devices are."""
    most = 1 << 50
    devices = [
        DeviceReport(
            folder=f"/mnt/nvme{number}/pagetier",
            standing=Standing.DOWN if number < troubles else Standing.OPEN,
            trouble="the disk has not answered for 100 s: it is still being opened " * 3 if number < troubles else "",
            opened="as it was left",
            last_sync=1795433628.5,
            cap=most,
            bytes=most,
            file_bytes=most,
            disk_total=most,
            device_bytes=most,
        )
        for number in range(DISK_DEVICES)
    ]
    report = summed(devices, "evict", BudgetReport(per_day=most, left=most, skipped_bytes=most))
    assert report.cap == DISK_DEVICES * most
    assert report.standing is (Standing.DOWN if troubles == DISK_DEVICES else Standing.OPEN)
    assert troubles != 1 or report.trouble == f"{devices[0].folder}: {devices[0].trouble}"
    huge_pages = HugePageReport(index=1 / 3, locks=1 / 7, arena=1 / 9)
    quotas = tuple(replace(TENANT, pattern=f"customer-{number}/llama-*") for number in range(tenants))
    packed = DaemonStatus(disk=report, huge_pages=huge_pages, tenants=quotas).pack()
    assert len(packed) <= STATUS_BYTES
    assert unpack(packed).tenants == ()
    assert unpack(packed).huge_pages == huge_pages
    unpacked = unpack(packed).disk
    assert [device.standing for device in unpacked.devices] == [device.standing for device in devices]
    assert all(
        seen.folder == of.folder and of.trouble.startswith(seen.trouble) and bool(seen.trouble) == bool(of.trouble)
        for seen, of in zip(unpacked.devices, devices, strict=True)
    )
    assert troubles > 1 or unpacked == report


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
