"""What the daemon says when something is gone: never better than the truth."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest

from bare_engine import Engine
from disk_daemon import DiskDaemon, TroubledDaemon
from eventually import eventually
from numbered_pages import GEOMETRY
from pagetier.daemon.cli.doctor.disk_checks import _room, _space
from pagetier.daemon.cli.doctor.result import Level
from pagetier.daemon.cli.stats import one_line
from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.host.host import Host
from pagetier.daemon.status.disk_report import DeviceReport, Standing
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.shm.protocol import BUILD
from pagetier.shm.segments import SegmentRequest, take
from refused_starts import shared_memory

SOON_STALLED = "from pagetier.daemon.disk import commands_in_flight; commands_in_flight.STALLED_S = 0.3"
MIB = 1 << 20


def removed(daemon: DiskDaemon) -> None:
    for name in daemon.leftovers():
        (Path("/dev/shm") / name).unlink()


def test_a_short_line_names_a_tier_that_is_down() -> None:
    with TroubledDaemon() as daemon:
        daemon.wait_open()
        daemon.disk.rename(daemon.disk.with_name("away"))
        daemon.disk.write_text("a file")
        daemon.kill_worker()
        daemon.wait_down("is a file")
        snapshot = daemon.snapshot()
    assert "; disk is down (" in one_line(snapshot) and "is a file" in one_line(snapshot)
    away = FleetStatus(standing="down", trouble="no route to host")
    assert "; fleet is down (no route to host); " in one_line(msgspec.structs.replace(snapshot, fleet=away))
    asks_not = FleetStatus(standing="open", breaker_open=True)
    line = one_line(msgspec.structs.replace(snapshot, fleet=asks_not))
    assert "; fleet is not asked, since it does not answer; " in line


def test_a_hand_over_without_segments_writes_the_pages_to_disk_and_says_so() -> None:
    with DiskDaemon() as daemon:
        with Engine(daemon) as engine:
            engine.store(range(8))
        removed(daemon)
        assert eventually(lambda: daemon.lines("event=segments_removed") != [])
        daemon.signal(signal.SIGUSR1)
        assert daemon.wait() == 0
        (line,) = daemon.lines("event=segments_removed")
        assert f"/dev/shm/{daemon.name}.index was removed by another process" in line
        assert daemon.lines("event=stopped")[0].endswith("way=stop")
        daemon.open()
        assert daemon.snapshot().tiers.disk.pages == 8


def test_a_stop_leaves_segments_that_have_replaced_its_own(name: str) -> None:
    request = SegmentRequest(name, GEOMETRY, BUILD)
    ours = take(request)
    for file in shared_memory(name):
        (Path("/dev/shm") / file).unlink()
    assert len(ours.removed()) == 3
    theirs = take(request)
    ours.remove()
    assert theirs.removed() == [] and len(shared_memory(name)) == 3
    theirs.remove()


def test_a_disk_that_was_given_up_at_a_stop_is_not_said_to_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SOON_STALLED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with DiskDaemon(16, "64MiB", "--set", "disk.write=through", "--set", "disk.stop_timeout=1s") as daemon:
        daemon.kill_worker(signal.SIGSTOP)
        with Engine(daemon) as engine:
            engine.store(range(8))
        assert eventually(lambda: "has not answered" in daemon.report().trouble), daemon.reported()
        before = daemon.lines("answers again")  # a slow opening may be such a fault, too
        daemon.stop()
        assert daemon.lines("answers again") == before


def test_doctor_compares_numbers_of_one_moment(tmp_path: Path) -> None:
    """Files that have grown since the last report leave less room, and are not in it yet."""
    device = DeviceOptions(tmp_path, 10 * MIB, 1, "files")
    report = DeviceReport(standing=Standing.OPEN, file_bytes=4 * MIB, disk_free=6 * MIB, disk_total=100 * MIB)
    assert _room(device, 65536, _space(tmp_path, report, Host())).level is Level.OK
    report = msgspec.structs.replace(report, disk_free=5 * MIB)
    assert _room(device, 65536, _space(tmp_path, report, Host())).level is Level.WARNING


def test_doctor_counts_files_of_frames_where_no_daemon_answers(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0/data.mdb").write_bytes(bytes(MIB))
    (tmp_path / "0/frames.0").write_bytes(bytes(2 * MIB))
    assert _space(tmp_path, None, Host()).in_use >= 3 * MIB
