"""Reads control groups, versions 2 and 1: memory limits of this process's groups, and what a group is charged with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from pagetier.daemon.host.mounts import Mount, read_mounts

# Version 1 reports "no limit" as the largest multiple of a page that fits 63 bits.
_NO_LIMIT = 1 << 62


class MemoryGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A control group with a memory limit.

    Attributes:
        file: The file with the limit.
        limit: The limit in bytes.
        usage: Bytes in use, page cache included.
        reclaimable: Bytes of the page cache, which the kernel drops on demand.
        above: Whether it is above the process's own group, so that it may have engines in it, too.
    """

    file: Path
    limit: int
    usage: int
    reclaimable: int
    above: bool = False

    @property
    def room(self) -> int:
        """Bytes that the group's processes may still allocate."""
        return max(0, self.limit - max(0, self.usage - self.reclaimable))


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    limits: tuple[str, ...]
    usage: str
    reclaimable: tuple[str, ...]
    shared: str


# Above memory.high no process is killed, but shared memory cannot be reclaimed, so that the group would nearly stop.
_V2 = _Version(
    kind="cgroup2",
    limits=("memory.max", "memory.high"),
    usage="memory.current",
    reclaimable=("inactive_file", "active_file"),
    shared="shmem",
)
_V1 = _Version(
    kind="cgroup",
    limits=("memory.limit_in_bytes",),
    usage="memory.usage_in_bytes",
    reclaimable=("total_inactive_file", "total_active_file"),
    shared="total_shmem",
)


def memory_groups(root: Path) -> tuple[MemoryGroup, ...]:
    """Returns the groups of this process that have a memory limit, its own first.

    Args:
        root: A folder with proc and sys.
    """
    found: list[MemoryGroup] = []
    for version, group in _memberships(root, "self"):
        for mount in _mounts(root, version):
            for depth, folder in enumerate(_folders(root, mount, group)):
                found += _limits(folder, version, depth)
    return tuple(found)


def shared_memory_charge(root: Path, process: int) -> int | None:
    """Returns the bytes of shared memory that the group of a process and the groups in it are charged with.

    Args:
        root: A folder with proc and sys.
        process: The PID.

    Returns:
        The bytes; None if this process cannot see them.
    """
    for version, group in _memberships(root, str(process)):
        for mount in _mounts(root, version):
            statistics = _statistics(next(_folders(root, mount, group)) / "memory.stat")
            if _is_mounted(group, mount.root) and version.shared in statistics:
                return statistics[version.shared]
    return None


def _memberships(root: Path, process: str) -> Iterator[tuple[_Version, str]]:
    """Yields the versions and paths of a process's groups.

    Lines of /proc/PID/cgroup are `0::PATH` for version 2 and `N:CONTROLLERS:PATH` for version 1.
    """
    for line in _text(root / "proc" / process / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield _V2, path
        elif "memory" in controllers.split(","):
            yield _V1, path


def _mounts(root: Path, version: _Version) -> list[Mount]:
    mounts = [mount for mount in read_mounts(root / "proc/self/mountinfo") if mount.kind == version.kind]
    chosen = mounts if version is _V2 else [mount for mount in mounts if "memory" in mount.options]
    return chosen[:1]


def _folders(root: Path, mount: Mount, group: str) -> Iterator[Path]:
    """Yields the folders from the group's up to the mount point; only the latter if the group is outside of it."""
    top = root / mount.point.lstrip("/")
    inside = _inside(group, mount.root)
    own = top / inside
    yield own
    for _ in inside.parts:
        own = own.parent
        yield own


def _inside(group: str, mounted: str) -> PurePosixPath:
    return PurePosixPath(group).relative_to(mounted) if _is_mounted(group, mounted) else PurePosixPath()


def _is_mounted(group: str, mounted: str) -> bool:
    path = PurePosixPath(group)
    return ".." not in path.parts and path.is_relative_to(mounted)


def _limits(folder: Path, version: _Version, depth: int) -> Iterator[MemoryGroup]:
    usage = _number(folder / version.usage)
    for name in version.limits:
        limit = _number(folder / name)
        if limit is not None and limit < _NO_LIMIT and usage is not None:
            reclaimable = _reclaimable(folder / "memory.stat", version.reclaimable)
            yield MemoryGroup(file=folder / name, limit=limit, usage=usage, reclaimable=reclaimable, above=depth > 0)


def _reclaimable(stat: Path, names: tuple[str, ...]) -> int:
    return sum(nbytes for name, nbytes in _statistics(stat).items() if name in names)


def _statistics(stat: Path) -> dict[str, int]:
    pairs = (line.split() for line in _text(stat).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def _number(file: Path) -> int | None:
    """Returns the number in `file`; None for "max" and if the file is missing."""
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    # Groups come and go, and a container may hide parts of the hierarchy.
    try:
        return file.read_text()
    except OSError:
        return ""
