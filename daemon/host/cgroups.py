"""What the memory control groups leave this process: its own group and all above it, version 2 and version 1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from pagetier.daemon.host.mounts import Mount, read_mounts

# version 1 says "no limit" with the largest multiple of a page that fits 63 bits
_NO_LIMIT = 1 << 62


class MemoryGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group with a limit, in bytes. `usage` counts page cache that the kernel drops on need: `reclaimable`."""

    file: Path
    limit: int
    usage: int
    reclaimable: int

    @property
    def room(self) -> int:
        """Bytes that the group's processes may still take."""
        return max(0, self.limit - max(0, self.usage - self.reclaimable))


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    limits: tuple[str, ...]
    usage: str
    reclaimable: tuple[str, ...]


# over memory.high nothing is killed, but shared memory can not be reclaimed, so that the group would all but stop
_V2 = _Version(
    kind="cgroup2",
    limits=("memory.max", "memory.high"),
    usage="memory.current",
    reclaimable=("inactive_file", "active_file"),
)
_V1 = _Version(
    kind="cgroup",
    limits=("memory.limit_in_bytes",),
    usage="memory.usage_in_bytes",
    reclaimable=("total_inactive_file", "total_active_file"),
)


def memory_groups(root: Path) -> tuple[MemoryGroup, ...]:
    """The groups of this process that have a memory limit, its own first. `root` has proc and sys."""
    found: list[MemoryGroup] = []
    for version, group in _memberships(root):
        for mount in _mounts(root, version):
            for folder in _folders(root, mount, group):
                found += _limits(folder, version)
    return tuple(found)


def _memberships(root: Path) -> Iterator[tuple[_Version, str]]:
    """Lines of /proc/self/cgroup are `0::PATH` for version 2 and `N:CONTROLLERS:PATH` for version 1."""
    for line in _text(root / "proc/self/cgroup").splitlines():
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
    """From the group's folder up to the mount point; that alone if the group lies outside of what is mounted."""
    top = root / mount.point.lstrip("/")
    inside = _inside(group, mount.root)
    own = top / inside
    yield own
    for _ in inside.parts:
        own = own.parent
        yield own


def _inside(group: str, mounted: str) -> PurePosixPath:
    path = PurePosixPath(group)
    if ".." in path.parts or not path.is_relative_to(mounted):
        return PurePosixPath()
    return path.relative_to(mounted)


def _limits(folder: Path, version: _Version) -> Iterator[MemoryGroup]:
    usage = _number(folder / version.usage)
    for name in version.limits:
        limit = _number(folder / name)
        if limit is not None and limit < _NO_LIMIT and usage is not None:
            reclaimable = _reclaimable(folder / "memory.stat", version.reclaimable)
            yield MemoryGroup(file=folder / name, limit=limit, usage=usage, reclaimable=reclaimable)


def _reclaimable(stat: Path, names: tuple[str, ...]) -> int:
    pairs = (line.split() for line in _text(stat).splitlines())
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in names)


def _number(file: Path) -> int | None:
    """The number in `file`; None for "max" and where there is no such file."""
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    # groups come and go, and in a container parts of the hierarchy may be hidden
    try:
        return file.read_text()
    except OSError:
        return ""
