"""Tests a disk that the kernel makes read-only under a running tier, as after errors, and that is mounted again.

Engines continue in between, and pages on the disk are found afterwards.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bare_engine import Engine
from disk_daemon import DiskDaemon
from eventually import PATIENCE_S, eventually
from injection.loop_mounts import ext4, mount_again
from pagetier.daemon.status.disk_report import Standing
from pagetier.daemon.workers.supervisor import LONGEST_PAUSE_S

ON_DISK = range(40)  # more than fits into memory


class OnMount(DiskDaemon):
    """A daemon with a disk tier on that file system."""

    def __init__(self, mount: Path) -> None:
        super().__init__(16, "64MiB", "--set", "disk.write=through", "--set", "disk.sync=1s")
        self.disk = mount / "disk"


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    with ext4(tmp_path / "image", tmp_path / "mount") as point:
        subprocess.run(["mount", "-o", "remount,errors=remount-ro", str(point)], check=True)
        yield point


def make_read_only(mount: Path) -> None:
    """Makes it read-only by an error of the file system: a remount is not possible while files are open for writing."""
    device = subprocess.run(["findmnt", "-no", "SOURCE", str(mount)], capture_output=True, text=True, check=True).stdout
    trigger = Path("/sys/fs/ext4") / Path(device.strip()).name / "trigger_fs_error"
    if not trigger.exists():
        pytest.skip("this kernel cannot simulate a file system error")
    trigger.write_text("pagetier-test")


def test_a_disk_may_become_read_only_and_writable_again(mount: Path, tmp_path: Path) -> None:
    with OnMount(mount) as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, ON_DISK)
        make_read_only(mount)
        for first in range(100, 160, 4):
            assert engine.store(range(first, first + 4)) == bytes(4)
            assert engine.places(range(first, first + 4)) == {"memory": 4}
        assert daemon.until(lambda disk: disk.standing is Standing.DOWN), daemon.reported()
        assert daemon.until(lambda disk: "Read-only file system" in disk.trouble and "dmesg" in disk.trouble)
        assert engine.places(ON_DISK)["disk"] == 0, "no match offers pages of a disk that is not open"
        assert "Read-only file system" in daemon.doctor()
        assert eventually(lambda: not daemon.worker() and mounted_again(tmp_path / "image", mount))
        within = LONGEST_PAUSE_S + PATIENCE_S  # the daemon pauses longer after each worker that failed
        assert daemon.until(lambda disk: disk.standing is Standing.OPEN and disk.restarts, within), daemon.reported()
        assert engine.places(ON_DISK) == {"disk": len(ON_DISK)}, daemon.reported()
        assert engine.fetch(range(8)) == [0] * 8
        assert engine.places(range(8)) == {"memory": 8}
        daemon.store_through(engine, range(200, 210))
        assert not daemon.report().trouble


def mounted_again(image: Path, mount: Path) -> bool:
    """Returns whether the remount succeeded: the next worker may just be trying to open its files."""
    try:
        mount_again(image, mount)
    except subprocess.CalledProcessError:
        return False
    return True
