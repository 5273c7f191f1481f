"""Tests what a host provides, read from trees of files as kernels write them, and from this host."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fake_host import host_files
from pagetier.daemon.host.arena_fit import OFFER_MARGIN, Fit, Need, fit, too_large
from pagetier.daemon.host.cgroups import MemoryGroup
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.mounts import read_mounts

MIB, GIB = 1 << 20, 1 << 30
SHM = "25 24 0:23 / /dev/shm rw,nosuid shared:5 - tmpfs tmpfs rw,size=65536k"
V2 = "31 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


def tmpfs(size: int, free: int) -> Any:
    return lambda path: SimpleNamespace(f_blocks=size // 4096, f_bavail=free // 4096, f_frsize=4096)


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    """Version 2: a limited service in a slice with a lower limit, below a root without one."""
    group = "sys/fs/cgroup/a.slice"
    return host_files(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a.slice/b.service",
            "proc/self/mountinfo": f"{SHM}\n{V2}",
            f"{group}/b.service/memory.max": 8 * GIB,
            f"{group}/b.service/memory.high": "max",
            f"{group}/b.service/memory.current": 3 * GIB,
            f"{group}/b.service/memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file {GIB}\nshmem 77",
            f"{group}/memory.max": "max",
            f"{group}/memory.high": 4 * GIB,
            f"{group}/memory.current": 3 * GIB,
            f"{group}/memory.stat": "inactive_file 0\nactive_file 0",
        },
    )


def test_version_2_counts_every_level_and_what_can_be_reclaimed(v2: Path) -> None:
    own, above = Host(v2).memory_groups()
    assert own == MemoryGroup(
        file=v2 / "sys/fs/cgroup/a.slice/b.service/memory.max",
        limit=8 * GIB,
        usage=3 * GIB,
        reclaimable=2 * GIB,
    )
    assert own.room == 7 * GIB
    assert above.file.name == "memory.high"
    assert above.room == GIB


def test_version_1_reports_no_limit_as_a_large_number(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/memory"
    root = host_files(
        tmp_path,
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/docker/abc/inner\n0::/",
            "proc/self/mountinfo": "30 1 0:24 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n"
            "31 1 0:24 /docker/abc /sys/fs/cgroup/memory ro,nosuid master:2 - cgroup cgroup rw,memory",
            f"{top}/memory.limit_in_bytes": 2 * GIB,
            f"{top}/memory.usage_in_bytes": 3 * GIB,
            f"{top}/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}\ntotal_active_file {GIB // 2}",
            f"{top}/inner/memory.limit_in_bytes": 9223372036854771712,
            f"{top}/inner/memory.usage_in_bytes": 5,
        },
    )
    (group,) = Host(root).memory_groups()
    assert group.file == root / top / "memory.limit_in_bytes"
    assert group.room == GIB // 2


def test_a_group_over_its_limit_has_no_room() -> None:
    assert MemoryGroup(file=Path("x"), limit=5, usage=9, reclaimable=1).room == 0
    assert MemoryGroup(file=Path("x"), limit=5, usage=1, reclaimable=9).room == 5


@pytest.mark.parametrize("group", ["/", "/../elsewhere", "/other/place"])
def test_a_group_outside_of_what_is_mounted_is_judged_by_the_mount_point(group: str, tmp_path: Path) -> None:
    files: dict[str, object] = {
        "proc/self/cgroup": f"0::{group}",
        "proc/self/mountinfo": V2.replace(" / /sys", " /mine /sys"),
        "sys/fs/cgroup/memory.max": GIB,
        "sys/fs/cgroup/memory.current": 0,
    }
    assert [group.limit for group in Host(host_files(tmp_path, files)).memory_groups()] == [GIB]


def test_an_empty_host_reports_nothing_and_no_error(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.memory_groups() == ()
    assert (host.memory().total, host.memory().available) == (None, None)
    assert (host.locked().soft, host.nodes(), host.huge_pages().size) == (None, (0,), None)
    assert "no transparent huge pages" in host.huge_pages().obstacle
    assert (host.shared_memory().kind, host.shared_memory().free) == ("", 0)
    assert not fit(host, Need(arena=4096, frame=4096)).fits


def test_mounts_are_unescaped_and_invalid_lines_are_skipped(tmp_path: Path) -> None:
    odd = "nonsense\n25 24 0:23 / /my\\040disk\\134x rw - ext4 /dev/x rw,huge=within_size\n"
    (mount,) = read_mounts(host_files(tmp_path, {"m": odd}) / "m")
    assert (mount.point, mount.kind) == ("/my disk\\x", "ext4")
    assert (mount.option("huge"), mount.option("size")) == ("within_size", "")


def test_locked_memory(tmp_path: Path) -> None:
    line = "Max locked memory         8388608              unlimited            bytes     "
    locked = Host(host_files(tmp_path, {"proc/self/limits": f"Limit\n{line}\nMax file locks 1 2"})).locked()
    assert (locked.soft, locked.hard) == (8388608, None)


def test_nodes_with_memory_that_are_allowed(tmp_path: Path) -> None:
    host_files(tmp_path, {"sys/devices/system/node/has_memory": "0-2,5"})
    assert Host(tmp_path).nodes() == (0, 1, 2, 5)
    host_files(tmp_path, {"proc/self/status": "Mems_allowed:\t3\nMems_allowed_list:\t1-5"})
    assert Host(tmp_path).nodes() == (1, 2, 5)


@pytest.mark.parametrize(
    ("shmem", "option", "words"),
    [
        ("always within_size advise [never] deny force", "", "huge=advise /dev/shm"),
        ("always within_size advise [never] deny force", ",huge=never", "huge=advise /dev/shm"),
        ("always within_size advise [never] deny force", ",huge=advise", ""),
        ("always within_size [advise] never deny force", ",huge=within_size", ""),
        ("always within_size advise never deny [force]", "", ""),
        ("always within_size advise never [deny] force", ",huge=advise", "shmem_enabled"),
    ],
)
def test_the_obstacle_to_huge_pages_is_named(shmem: str, option: str, words: str, tmp_path: Path) -> None:
    thp = "sys/kernel/mm/transparent_hugepage"
    files: dict[str, object] = {f"{thp}/hpage_pmd_size": 2 * MIB, f"{thp}/shmem_enabled": shmem}
    files["proc/self/mountinfo"] = SHM + option
    files["proc/meminfo"] = "HugePages_Total:       4\nHugePages_Free:        3\nHugepagesize:       2048 kB"
    pages = Host(host_files(tmp_path, files)).huge_pages()
    assert (pages.size, pages.explicit_total, pages.explicit_free, pages.explicit_size) == (2 * MIB, 4, 3, 2 * MIB)
    assert words in pages.obstacle
    assert bool(words) == bool(pages.obstacle)


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "run/x").mkdir(parents=True)
    found = Host(tmp_path).folder(Path("/run/x"))
    assert (found.path, found.owner, found.writable) == (Path("/run/x"), os.getuid(), True)
    assert Host(tmp_path).folder(Path("/run/y")).owner is None


# --- fit --------------------------------------------------------------------------------------------------------


def host_with(root: Path, *, shm: int, available: int) -> Host:
    (root / "dev/shm").mkdir(parents=True, exist_ok=True)
    host_files(root, {"proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {available // 1024} kB"})
    return Host(root, statvfs=tmpfs(2 * shm + 4096, shm))


@pytest.mark.parametrize(
    ("total", "gibibytes", "words"),
    [
        (100, 25, ""),
        (100, 50, ""),
        (128 - 3, 64, ""),  # a host that is sold with 128 GiB
        (100, 101, ""),  # does not fit
        (100, 60, "arena.size = 60.0 GiB is 60% of this host's memory, 100.0 GiB: "),
    ],
)
def test_more_than_half_of_the_host_is_a_warning(total: int, gibibytes: int, words: str, tmp_path: Path) -> None:
    host = Host(host_files(tmp_path, {"proc/meminfo": f"MemTotal: {total << 20} kB"}))
    why = too_large(host, gibibytes * GIB)
    assert bool(why) == bool(words) and why.startswith(words) and len(why) <= 120


def test_only_a_group_above_the_daemon_s_own_is_its_host(v2: Path) -> None:
    """The daemon's own, as of its container, needs room for the daemon only (docs/docker/compose.yaml)."""
    host_files(v2, {"proc/meminfo": "MemTotal: 99999999 kB"})
    assert too_large(Host(v2), 2 * GIB) == ""
    slice = v2 / "sys/fs/cgroup/a.slice/memory.high"
    assert f"3.0 GiB is 75% of the control group's memory ({slice}), 4.0 GiB" in too_large(Host(v2), 3 * GIB)
    slice.write_text("max")
    assert too_large(Host(v2), 7 * GIB) == ""


def test_a_host_that_does_not_say_its_memory_is_not_judged(tmp_path: Path) -> None:
    assert too_large(Host(tmp_path), GIB) == ""


def test_shared_memory_is_the_limit(v2: Path) -> None:
    answer = fit(host_with(v2, shm=512 * MIB, available=64 * GIB), Need(arena=4 * GIB, frame=MIB))
    assert not answer.fits
    assert answer.largest == 512 * MIB
    text = answer.explain()
    assert text.startswith("an arena of 4.0 GiB does not fit: /dev/shm has 512.0 MiB left. 512.0 MiB would fit")
    assert 'arena.size = "512MiB"' in text
    assert "mount -o remount,size=" in text


def test_the_tightest_group_is_the_limit(v2: Path) -> None:
    answer = fit(host_with(v2, shm=64 * GIB, available=64 * GIB), Need(arena=4 * GIB, frame=MIB))
    assert not answer.fits
    assert answer.largest is not None
    assert 0 < answer.largest < GIB
    assert "a.slice/memory.high) has 1.0 GiB left" in answer.explain()


def test_the_host_s_memory_is_the_limit(tmp_path: Path) -> None:
    answer = fit(host_with(tmp_path, shm=64 * GIB, available=3 * GIB), Need(arena=3 * GIB, frame=MIB))
    assert not answer.fits
    assert "MemAvailable" in answer.explain()


def test_the_offered_size_still_fits_into_a_little_less_memory(tmp_path: Path) -> None:
    need = Need(arena=64 * GIB, frame=MIB, index_per_frame=1000)
    offered = fit(host_with(tmp_path, shm=64 * GIB, available=3 * GIB), need).offered
    less = fit(host_with(tmp_path, shm=64 * GIB, available=3 * GIB - OFFER_MARGIN), need)
    assert less.largest == offered and offered > 2 * GIB
    both = fit(host_with(tmp_path, shm=(offered // MIB + 2) * (MIB + 1024), available=3 * GIB), need)
    assert (both.largest, both.offered) == (offered + 2 * MIB, offered), "the margin of the other limit"


def test_a_host_without_room_for_a_frame_is_explained(tmp_path: Path) -> None:
    answer = fit(host_with(tmp_path, shm=MIB, available=GIB), Need(arena=4 * MIB, frame=2 * MIB))
    assert (answer.fits, answer.largest) == (False, 0)
    assert "No frame fits" in answer.explain()


def test_an_adopted_segment_needs_no_new_memory(tmp_path: Path) -> None:
    host = host_with(tmp_path, shm=0, available=64 * MIB)
    need = Need(arena=4 * GIB, frame=MIB, index_fixed=MIB, index_per_frame=100)
    assert not fit(host, need).fits
    assert fit(host, structs.replace(need, in_memory=4 * GIB + 2 * MIB)).fits


def test_a_tmpfs_without_a_limit_does_not_limit(tmp_path: Path) -> None:
    host = Host(host_with(tmp_path, shm=0, available=8 * GIB).root, statvfs=tmpfs(0, 0))
    assert host.shared_memory().free is None
    assert fit(host, Need(arena=4 * GIB, frame=MIB)).fits


@settings(deadline=None)  # files
@given(
    room=st.tuples(st.integers(0, 1 << 42), st.integers(0, 1 << 42)),
    arena=st.integers(1, 1 << 44),
    frame=st.integers(12, 24).map(lambda shift: 1 << shift),
    index=st.tuples(st.integers(0, 1 << 26), st.integers(0, 4096)),
)
def test_the_offered_size_fits_and_one_more_frame_does_not(
    room: tuple[int, int], arena: int, frame: int, index: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    host = host_with(tmp_path_factory.getbasetemp() / "fit", shm=room[0], available=room[1])
    fixed, per_frame = index

    def ask(size: int) -> Fit:
        return fit(host, Need(arena=size, frame=frame, index_fixed=fixed, index_per_frame=per_frame))

    largest = ask(arena).largest
    assert largest is not None
    assert largest % frame == 0
    assert ask(arena).fits == (arena // frame * frame <= largest)
    assert ask(largest).fits
    assert not ask(largest + frame).fits
    if largest:
        assert largest // frame * (frame + per_frame) + fixed <= min(room)


# --- this host --------------------------------------------------------------------------------------------------


def test_this_host() -> None:
    host = Host()
    memory, shm = host.memory(), host.shared_memory()
    assert memory.total is not None
    assert memory.available is not None
    assert 0 < memory.available <= memory.total
    assert shm.kind != ""
    assert host.nodes()
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    assert host.locked().soft == (None if soft == resource.RLIM_INFINITY else soft)
    assert not fit(host, Need(arena=1 << 60, frame=MIB)).fits


SMALL_TMPFS = """
import os, subprocess, sys
from pathlib import Path
from pagetier.daemon.host.arena_fit import Need, fit
from pagetier.daemon.host.host import Host
root = Path(sys.argv[1])
(root / "dev/shm").mkdir(parents=True)
if subprocess.call(["mount", "-t", "tmpfs", "-o", "size=16m", "none", root / "dev/shm"], stderr=subprocess.DEVNULL):
    sys.exit(77)
(root / "dev/shm/x").write_bytes(bytes(4 << 20))
print(Host(root).shared_memory().free, fit(Host(root), Need(arena=64 << 20, frame=1 << 20)).largest)
"""


def test_a_real_tmpfs_of_16_mib_with_4_taken(tmp_path: Path) -> None:
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", SMALL_TMPFS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespaces here")
    assert done.stdout.split() == [str(12 * MIB), str(12 * MIB)], done.stderr


@pytest.mark.parametrize(
    ("files", "charge"),
    [
        ({"proc/9/cgroup": "0::/a.slice/b.service"}, 77),
        ({"proc/9/cgroup": "0::/a.slice"}, None),
        ({"proc/9/cgroup": "0::/../b", "sys/fs/cgroup/memory.stat": "shmem 5"}, None),
        ({"proc/9/cgroup": "0::/", "sys/fs/cgroup/memory.stat": "shmem 5"}, 5),
        ({}, None),
    ],
)
def test_the_charge_of_another_process_in_version_2(v2: Path, files: dict[str, object], charge: int | None) -> None:
    host_files(v2, files)
    assert Host(v2).shared_memory_charge(9) == charge
