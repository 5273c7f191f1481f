"""Tests that each report of the disk tier fits into the header, and is read as it was written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagetier.daemon.disk.status import BudgetReport, DaemonStatus, DiskReport, Standing, unpack, with_state
from pagetier.shm._core import STATUS_BYTES
from pagetier.tiers.base import TierState

NUMBERS = st.integers(0, 1 << 62)


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


def test_a_report_takes_over_the_state_of_the_worker() -> None:
    state = TierState(
        file_bytes=1,
        cap_bytes=2,
        used_frames=3,
        room=4,
        disk_free=5,
        disk_total=6,
        last_sync=7_000_000_000,
        clean=False,
        opened="new",
        damaged=8,
        note="a note",
    )
    report = with_state(DiskReport(standing=Standing.OPEN, folder="/x", restarts=2), state)
    assert (report.file_bytes, report.cap, report.disk_free, report.disk_total) == (1, 2, 5, 6)
    assert (report.last_sync, report.clean, report.opened, report.damaged) == (7.0, False, "new", 8)
    assert (report.note, report.folder, report.restarts, report.standing) == ("a note", "/x", 2, Standing.OPEN)
