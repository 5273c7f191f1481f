"""Reads what this host provides: shared memory, memory, locked memory, huge pages, NUMA nodes, permissions.

Each method reads the current value and changes nothing. A value that the host does not report is None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from pagetier.daemon.host.cgroups import MemoryGroup, memory_groups, shared_memory_charge
from pagetier.daemon.host.mounts import VOLATILE, Mount, mount_of, read_mounts

_UNKNOWN = "?"
_IN_MEMORY = (*VOLATILE, "devtmpfs")
_THP = "sys/kernel/mm/transparent_hugepage"


class SharedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """/dev/shm.

    Attributes:
        path: Its path.
        kind: The type of its file system; "" if it is missing, "?" if that is not known.
        size: Its bytes; None if it has no limit of its own.
        free: Its free bytes; None if it has no limit of its own.
        writable: Whether this process may create files in it.
    """

    path: Path
    kind: str
    size: int | None
    free: int | None
    writable: bool

    @property
    def flaw(self) -> str:
        """What is wrong with its file system, and what to do; "" if nothing."""
        if self.kind in ("", _UNKNOWN, *_IN_MEMORY):
            return ""
        remedy = 'mount a tmpfs there (on Kubernetes a volume with "medium: Memory")'
        return f"/dev/shm is {self.kind}, not tmpfs: the kernel writes pages in memory to its disk: {remedy}"


class HostMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The host's memory in bytes; `available` is the memory that processes can allocate without swapping."""

    total: int | None
    available: int | None


class Locked(msgspec.Struct, frozen=True, kw_only=True):
    """How many bytes this process may lock (RLIMIT_MEMLOCK); None: no limit."""

    soft: int | None
    hard: int | None


class HugePages(msgspec.Struct, frozen=True, kw_only=True):
    """Huge pages.

    Attributes:
        size: Bytes of a transparent huge page; None if the kernel has none.
        shmem: The kernel's setting for shared memory.
        mount: The option `huge` of /dev/shm.
        flaw: What is wrong with the file system of /dev/shm, "" if nothing.
        explicit_total: Pages of hugetlbfs.
        explicit_free: Free pages of hugetlbfs.
        explicit_size: Bytes of a page of hugetlbfs.
    """

    size: int | None
    shmem: str
    mount: str
    explicit_total: int
    explicit_free: int
    explicit_size: int
    flaw: str = ""

    @property
    def remount(self) -> bool:
        """Whether /dev/shm has to be mounted with another option `huge`, and nothing else is missing."""
        mounted = self.shmem == "force" or self.mount in ("advise", "within_size", "always")
        return self.size is not None and self.shmem != "deny" and not mounted and not self.flaw

    @property
    def obstacle(self) -> str:
        """Why /dev/shm cannot follow the advice of `huge_pages = "advise"`, and what to do; "" if it can."""
        if self.size is None:
            return "this kernel has no transparent huge pages"
        if self.flaw:
            return self.flaw
        if self.shmem == "deny":
            return f"the kernel denies them for shared memory: echo advise > /{_THP}/shmem_enabled"
        return "/dev/shm is mounted without them: mount -o remount,huge=advise /dev/shm" if self.remount else ""


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder and what this process may do with it. `owner` is a user ID, None if the folder is missing."""

    path: Path
    owner: int | None
    writable: bool


class Host(msgspec.Struct, frozen=True):
    """This host, as seen under `root`: tests use a folder with proc, sys and dev/shm in it."""

    root: Path = Path("/")
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs

    def shared_memory(self) -> SharedMemory:
        """Returns the state of /dev/shm, where the segments are."""
        path = self.root / "dev/shm"
        try:
            stat = self.statvfs(path)
        except OSError:
            return SharedMemory(path=path, kind="", size=0, free=0, writable=False)
        mount = self._shm_mount()
        # A tmpfs mounted with size=0 has no limit and reports zeros.
        size = stat.f_blocks * stat.f_frsize or None
        free = stat.f_bavail * stat.f_frsize if size else None
        writable = os.access(path, os.W_OK | os.X_OK)
        return SharedMemory(path=path, kind=mount.kind if mount else _UNKNOWN, size=size, free=free, writable=writable)

    def memory(self) -> HostMemory:
        """Returns the memory of the whole host, regardless of control groups."""
        return HostMemory(total=self._meminfo("MemTotal"), available=self._meminfo("MemAvailable"))

    def memory_groups(self) -> tuple[MemoryGroup, ...]:
        """Returns the control groups of this process that have a memory limit, its own first."""
        return memory_groups(self.root)

    def shared_memory_charge(self, process: int) -> int | None:
        """Returns the bytes of shared memory that the control group of this PID is charged with."""
        return shared_memory_charge(self.root, process)

    def hidepid(self) -> str:
        """Returns the option `hidepid` of /proc, by which users see their own processes only; "" without it."""
        mounts = [mount for mount in read_mounts(self.root / "proc/self/mountinfo") if mount.point == "/proc"]
        return mounts[-1].option("hidepid") if mounts else ""

    def locked(self) -> Locked:
        """Returns RLIMIT_MEMLOCK."""
        found = re.search(r"^Max locked memory +(\S+) +(\S+)", self._text("proc/self/limits"), re.MULTILINE)
        soft, hard = found.groups() if found else ("unlimited", "unlimited")
        return Locked(soft=_number(soft), hard=_number(hard))

    def huge_pages(self) -> HugePages:
        """Returns the state of transparent huge pages in /dev/shm, and of explicit ones."""
        mount = self._shm_mount()
        return HugePages(
            size=_number(self._text(f"{_THP}/hpage_pmd_size").strip()),
            shmem=_selected(self._text(f"{_THP}/shmem_enabled")),
            mount=(mount.option("huge") if mount else "") or "never",
            explicit_total=self._meminfo("HugePages_Total") or 0,
            explicit_free=self._meminfo("HugePages_Free") or 0,
            explicit_size=self._meminfo("Hugepagesize") or 0,
            flaw=self.shared_memory().flaw,
        )

    def nodes(self) -> tuple[int, ...]:
        """Returns the NUMA nodes whose memory this process may use, in order; (0,) if the kernel reports none."""
        with_memory = _listed(self._text("sys/devices/system/node/has_memory").strip())
        allowed = re.search(r"^Mems_allowed_list:\s*(\S+)", self._text("proc/self/status"), re.MULTILINE)
        nodes = with_memory & _listed(allowed[1]) if allowed else with_memory
        return tuple(sorted(nodes)) or (0,)

    def folder(self, path: Path) -> Folder:
        """Returns the state of the folder at the absolute `path`."""
        real = self.root / str(path).lstrip("/")
        if not real.is_dir():
            return Folder(path=path, owner=None, writable=False)
        return Folder(path=path, owner=real.stat().st_uid, writable=os.access(real, os.W_OK | os.X_OK))

    def _shm_mount(self) -> Mount | None:
        return mount_of(Path("/dev/shm"), self.mounts())

    def mounts(self) -> tuple[Mount, ...]:
        """Returns all mounts, none if the host does not report them."""
        return read_mounts(self.root / "proc/self/mountinfo")

    def _meminfo(self, name: str) -> int | None:
        found = re.search(rf"^{name}: +([0-9]+)( kB)?$", self._text("proc/meminfo"), re.MULTILINE)
        return int(found[1]) * (1024 if found[2] else 1) if found else None

    def _text(self, file: str) -> str:
        try:
            return (self.root / file).read_text()
        except OSError:
            return ""


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _selected(text: str) -> str:
    """Returns the word in brackets of "always [madvise] never"."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else ""


def _listed(text: str) -> set[int]:
    """Returns the numbers of "0-1,3"."""
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers
