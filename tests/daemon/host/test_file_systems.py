"""The file systems below the arena and the fleet: a wrong one works, and is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_host import host_files
from pagetier.daemon.cli.doctor.fleet_checks import check_fleet_folder
from pagetier.daemon.cli.doctor.host_checks import check_huge_pages, check_shared_memory
from pagetier.daemon.cli.doctor.result import Level
from pagetier.daemon.config.remote_options import RemoteOptions
from pagetier.daemon.config.schema import Config
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.memory_policy import Region, advise
from pagetier.daemon.status.huge_page_report import HugePageReport

MIB = 1 << 20


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        (
            "1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / /dev rw - tmpfs tmpfs rw\n3 2 8:1 / /dev/shm rw - xfs x rw",
            "xfs",
        ),
        ("1 0 0:1 / / rw - overlay overlay rw", "overlay"),
    ],
)
def test_memory_on_a_disk_is_named_with_what_to_do(mounts: str, kind: str, tmp_path: Path) -> None:
    thp = "sys/kernel/mm/transparent_hugepage"
    files: dict[str, object] = {f"{thp}/hpage_pmd_size": 2 * MIB, f"{thp}/shmem_enabled": "[advise]"}
    host = Host(host_files(tmp_path, {**files, "proc/self/mountinfo": mounts}))
    (tmp_path / "dev/shm").mkdir(parents=True)
    assert f"/dev/shm is {kind}, not tmpfs" in host.shared_memory().flaw
    assert "remount" not in host.huge_pages().obstacle and not host.huge_pages().remount
    assert check_shared_memory(host).level is Level.PROBLEM
    asked = check_huge_pages(Config(socket=Path("/x")), host, HugePageReport())
    assert (asked.level, "remount" in asked.text) == (Level.WARNING, False)
    advised = advise(Region(0, 0), huge_pages="advise", numa="first-touch", host=host)
    (advice,) = [each for each in advised if each.what != "core dumps"]
    assert not advice.taken and advice.note == host.shared_memory().flaw


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        ("1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / /dev rw - tmpfs tmpfs rw", "tmpfs"),
        ("1 0 0:1 / /dev/shm rw - ext4 x rw\n2 1 0:2 / /dev/shm rw - tmpfs tmpfs rw", "tmpfs"),
        ("", "?"),
    ],
)
def test_memory_in_memory_is_as_it_should_be(mounts: str, kind: str, tmp_path: Path) -> None:
    host = Host(host_files(tmp_path, {"proc/self/mountinfo": mounts}))
    (tmp_path / "dev/shm").mkdir(parents=True)
    assert (host.shared_memory().kind, host.shared_memory().flaw) == (kind, "")


@pytest.mark.parametrize(("kind", "named"), [("tmpfs", True), ("nfs4", False), ("ext4", False)])
def test_a_fleet_in_the_memory_of_one_host_is_named(kind: str, named: bool, tmp_path: Path) -> None:
    mounts = f"1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / /srv/a\\040fleet rw - {kind} x rw"
    host = Host(host_files(tmp_path, {"proc/self/mountinfo": mounts}))
    remote = RemoteOptions(url="file:///srv/a fleet/pages?x=1")
    assert [result.what for result in check_fleet_folder(remote, host)] == ["fleet folder"] * named
