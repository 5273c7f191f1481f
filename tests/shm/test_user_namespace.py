"""Tests which number stands for the users and groups that a user namespace does not map."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_host import host_files
from pagetier.shm.user_namespace import UnmappedIds, read_unmapped_ids


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
