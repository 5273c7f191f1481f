"""The kernel makes a disk read-only under a running tier, as it does after errors; then it is mounted again.

Engines go on meanwhile, and what was on the disk is there afterwards.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_daemon import DiskDaemon, Engine
from disk_faults.loop_mounts import ext4, mount_again
from pagetier.daemon.disk.status import Standing
from running_daemon import eventually

ON_DISK = range(40)  # more than there is room for in memory


class OnMount(DiskDaemon):
    """With a disk tier on that file system."""

    def __init__(self, mount: Path) -> None:
        super().__init__(16, "64MiB", "--disk-write", "through", "--disk-sync", "1s")
        self.disk = mount / "disk"


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    with ext4(tmp_path / "image", tmp_path / "mount") as point:
        subprocess.run(["mount", "-o", "remount,errors=remount-ro", str(point)], check=True)
        yield point


def make_read_only(mount: Path) -> None:
    """By an error of the file system's own: files that are open for writing do not keep the kernel from it."""
    device = subprocess.run(["findmnt", "-no", "SOURCE", str(mount)], capture_output=True, text=True, check=True).stdout
    trigger = Path("/sys/fs/ext4") / Path(device.strip()).name / "trigger_fs_error"
    if not trigger.exists():
        pytest.skip("this kernel makes no errors on request")
    trigger.write_text("pagetier-test")


def test_a_disk_becomes_read_only_and_comes_back(mount: Path, tmp_path: Path) -> None:
    with OnMount(mount) as daemon, Engine(daemon) as engine:
        engine.store_through(daemon, ON_DISK)
        make_read_only(mount)
        for first in range(100, 160, 4):
            assert engine.store(range(first, first + 4)) == bytes(4)
            assert engine.places(range(first, first + 4)) == {"memory": 4}
        assert daemon.until(lambda disk: disk.standing is Standing.DOWN), daemon.told()
        assert daemon.until(lambda disk: "Read-only file system" in disk.trouble and "dmesg" in disk.trouble)
        assert engine.places(ON_DISK)["disk"] == 0, "nobody is told to wait for a disk that is not there"
        assert "Read-only file system" in daemon.doctor()
        assert eventually(lambda: not daemon.worker() and mounted_again(tmp_path / "image", mount), 20)
        daemon.wait_open(restarts=1)
        assert engine.places(ON_DISK) == {"disk": len(ON_DISK)}
        assert engine.fetch(range(8)) == [0] * 8
        assert engine.places(range(8)) == {"memory": 8}
        engine.store_through(daemon, range(200, 210))
        assert not daemon.report().trouble


def mounted_again(image: Path, mount: Path) -> bool:
    """Whether it is: the next worker may be looking whether it can open its files."""
    try:
        mount_again(image, mount)
    except subprocess.CalledProcessError:
        return False
    return True
