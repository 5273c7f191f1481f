"""Tests what a refusal says of processes that cannot be seen, and which numbers of users identify none."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_host import host_files
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.peer_credentials import Caller
from pagetier.daemon.host.refusals import why_unseen
from pagetier.daemon.host.user_namespace import UnmappedIds, read_unmapped_ids

ROOT_PROC = "22 21 0:20 / /proc rw,nosuid - proc proc rw"
HIDDEN = "90 22 0:50 / /proc rw,nosuid - proc proc rw,hidepid=invisible"


@pytest.mark.parametrize(
    ("pid", "mounts", "words"),
    [
        (0, ROOT_PROC, "a process of user 7 lives in a PID namespace that cannot be seen from here: give the daemon"),
        (21, ROOT_PROC, "process 21 of user 7 cannot be seen from here, or has ended"),
        (21, f"{ROOT_PROC}\n{HIDDEN}", "/proc is mounted with hidepid=invisible; mount it with gid=GROUP"),
        (21, f"{HIDDEN}\n{ROOT_PROC}", "cannot be seen from here, or has ended"),
    ],
)
def test_a_refusal_says_why_a_process_cannot_be_seen(pid: int, mounts: str, words: str, tmp_path: Path) -> None:
    host_files(tmp_path, {"proc/self/mountinfo": mounts})
    assert words in why_unseen(Caller(pid, 7, frozenset()), Host(tmp_path))


@pytest.mark.parametrize(
    ("uid_map", "gid_map", "expected"),
    [
        ("         0          0 4294967295", "0 0 4294967295", UnmappedIds(None, None)),
        ("0 0 65534\n65534 65534 4294901761", "0 100000 65536", UnmappedIds(None, 65533)),
        ("", "", UnmappedIds(65534, 65533)),
    ],
)
def test_a_namespace_that_does_not_map_all_has_a_number_for_the_rest(
    uid_map: str, gid_map: str, expected: UnmappedIds, tmp_path: Path
) -> None:
    maps = {"proc/self/uid_map": uid_map, "proc/self/gid_map": gid_map}
    host_files(tmp_path, maps | {"proc/sys/kernel/overflowuid": 65534, "proc/sys/kernel/overflowgid": 65533})
    assert read_unmapped_ids(tmp_path) == expected


def test_without_proc_the_usual_number_identifies_no_user(tmp_path: Path) -> None:
    assert read_unmapped_ids(tmp_path) == UnmappedIds(65534, 65534)
