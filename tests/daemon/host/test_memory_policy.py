"""Tests advice to the kernel by reading it back from the kernel."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_host import host_files
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.memory_policy import (
    Region,
    advise,
    ask_huge_pages,
    exclude_from_dumps,
    interleave,
    lazy_memory,
)
from pagetier.shm.lazy_memory import LazyMemory

MIB = 1 << 20


@pytest.fixture
def region() -> Iterator[Region]:
    fd = os.memfd_create("pagetier-test")
    os.ftruncate(fd, 8 * MIB)
    mapping = mmap.mmap(fd, 8 * MIB)
    view = (ctypes.c_char * len(mapping)).from_buffer(mapping)
    yield Region(ctypes.addressof(view), len(mapping))
    del view
    mapping.close()
    os.close(fd)


def flags_of(region: Region) -> set[str]:
    text = Path("/proc/self/smaps").read_text()
    found = re.search(rf"^{region.address:x}-.*?^VmFlags: ([^\n]*)", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return set(found[1].split())


def policy_of(region: Region) -> int:
    number = {"x86_64": 239, "aarch64": 236}[platform.machine()]
    mode = ctypes.c_int(-1)
    libc = ctypes.CDLL(None, use_errno=True)
    by_address = ctypes.c_ulong(2)
    address, none = ctypes.c_void_p(region.address), ctypes.c_void_p()
    assert libc.syscall(ctypes.c_long(number), ctypes.byref(mode), none, ctypes.c_ulong(0), address, by_address) == 0
    return mode.value


def test_the_mapping_is_excluded_from_dumps(region: Region) -> None:
    assert "dd" not in flags_of(region)
    exclude_from_dumps(region)
    assert "dd" in flags_of(region)


def test_huge_pages_are_requested(region: Region) -> None:
    if Host().huge_pages().size is None:
        pytest.skip("no transparent huge pages here")
    ask_huge_pages(region)
    assert "hg" in flags_of(region)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="reads the policy back by syscall number")
def test_interleaving_is_the_policy_of_the_memory(region: Region) -> None:
    try:
        interleave(region, Host().nodes())
    except PermissionError:
        pytest.skip("policies are not allowed here")
    assert policy_of(region) == 3


def test_a_bad_region_is_an_error_with_its_number() -> None:
    with pytest.raises(OSError, match=r"Invalid argument|Cannot allocate") as caught:
        exclude_from_dumps(Region(4097, 4096))
    assert caught.value.errno == errno.EINVAL


def two_nodes(root: Path, *, huge: str) -> Host:
    files = {
        "sys/devices/system/node/has_memory": "0-1",
        "sys/kernel/mm/transparent_hugepage/hpage_pmd_size": 2 * MIB,
        "proc/self/mountinfo": f"25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw,huge={huge}",
    }
    (root / "dev/shm").mkdir(parents=True, exist_ok=True)
    return Host(host_files(root, files))


def test_advice_follows_the_configuration(region: Region, tmp_path: Path) -> None:
    (dumps,) = advise(region, huge_pages="never", numa="local", host=Host())
    assert dumps.taken
    _, huge, numa = advise(region, huge_pages="advise", numa="interleave", host=two_nodes(tmp_path, huge="advise"))
    assert huge.taken == (Host().huge_pages().size is not None)
    # A node that this host may lack is reported, not raised.
    assert ("nodes 0, 1" in numa.note) == numa.taken
    _, huge = advise(region, huge_pages="advise", numa="local", host=two_nodes(tmp_path, huge="never"))
    assert (huge.taken, "remount,huge=advise" in huge.note) == (False, True)


@pytest.mark.parametrize(
    ("wanted", "mounted", "through"),
    [
        ("advise", "advise", LazyMemory.MAPPING),
        ("advise", "never", LazyMemory.FILE),
        ("never", "advise", LazyMemory.FILE),
    ],
)
def test_lazy_memory_is_mapped_only_for_huge_pages(
    tmp_path: Path, wanted: str, mounted: str, through: LazyMemory
) -> None:
    assert lazy_memory(wanted, two_nodes(tmp_path, huge=mounted)) is through


def test_lazy_memory_of_another_file_system_is_mapped(tmp_path: Path) -> None:
    """It may not allocate through the file."""
    mount = "25 24 0:23 / /dev/shm rw - ramfs ramfs rw"
    (tmp_path / "dev/shm").mkdir(parents=True)
    assert lazy_memory("never", Host(host_files(tmp_path, {"proc/self/mountinfo": mount}))) is LazyMemory.MAPPING


def test_one_node_is_nothing_to_interleave(region: Region, tmp_path: Path) -> None:
    numa = advise(region, huge_pages="never", numa="interleave", host=Host(tmp_path))[1]
    assert not numa.taken
    assert "one NUMA node" in numa.note


def test_refused_advice_is_reported_and_not_raised() -> None:
    (dumps,) = advise(Region(4097, 4096), huge_pages="never", numa="local", host=Host())
    assert not dumps.taken
    assert "Invalid argument" in dumps.note
