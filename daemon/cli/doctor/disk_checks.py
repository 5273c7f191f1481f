"""Checks the disk tier: folder, free space, file system and state. Changes nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pagetier.daemon.cli.doctor.result import Result, ok, problem, warning
from pagetier.daemon.cli.render import synced
from pagetier.daemon.config.room import room_of_disk
from pagetier.daemon.config.schema import Config
from pagetier.daemon.disk.status import DiskReport, Phase, Standing
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.mounts import read_mounts
from pagetier.daemon.stats.snapshot import Snapshot
from pagetier.shm.units import counted, format_size, spell_size

_UNITS = "etc/systemd/system"


def check_service_may_write(config: Config, host: Host) -> Iterator[Result]:
    """Checks whether an installed service may write to the disk tier's folder: it may write only to its own folders."""
    path, own = config.disk.path, Path("/var/lib") / config.name
    tenant = config.name.removeprefix("pagetier").removeprefix("-")
    kind = "pagetierd@" if tenant else "pagetierd"
    units = host.root / _UNITS
    if path is None or path.is_relative_to(own) or not (units / f"{kind}.service").exists():
        return
    service = kind + tenant
    if not any(_allows(text, path) for text in _texts(units, {f"{kind}.service", f"{service}.service"})):
        yield problem(
            "disk service",
            f"the service {service} may write only below {own}: create {path} for its user, and"
            f" add the lines [Service] and ReadWritePaths={path} by `systemctl edit {service}`",
        )


def _texts(units: Path, kinds: set[str]) -> Iterator[str]:
    """Yields the texts of these units and of their drop-ins."""
    for kind in sorted(kinds):
        for file in (units / kind, *sorted((units / f"{kind}.d").glob("*.conf"))):
            with contextlib.suppress(OSError):
                yield file.read_text(errors="replace")


def _allows(text: str, path: Path) -> bool:
    """Returns whether a line allows writing to this folder or to one above it."""
    lines = (line.partition("=") for line in text.splitlines())
    named = [
        word for key, _, words in lines if key.strip() in ("ReadWritePaths", "BindPaths") for word in words.split()
    ]
    return any(path.is_relative_to(word.lstrip("-+").partition(":")[0]) for word in named)


_NETWORKED = ("nfs", "nfs4", "cifs", "smb3", "ceph", "fuse.sshfs", "9p")
_VOLATILE = ("tmpfs", "ramfs")
_CLOSE = 0.05


def check_disk(config: Config, host: Host, snapshot: Snapshot | None) -> Iterator[Result]:
    """Checks the configured disk tier. snapshot: of the daemon; None if none answers."""
    if config.disk.path is None:
        if snapshot is not None and snapshot.disk.standing is not Standing.NONE:
            yield from _standing(snapshot.disk)
        else:
            yield ok("disk", "no disk tier is configured (disk.path and disk.size)")
        return
    if snapshot is None or snapshot.disk.standing is not Standing.OPEN:  # an open tier proves that its daemon may write
        yield _folder(config.disk.path)
    yield from check_service_may_write(config, host)
    yield _file_system(config.disk.path, host)
    in_use = snapshot.disk.file_bytes if snapshot is not None else _taken(config.disk.path)
    yield _room(config, host, in_use)
    if snapshot is not None:
        yield from _standing_of(snapshot)


def _standing_of(snapshot: Snapshot) -> Iterator[Result]:
    if snapshot.daemon.phase is Phase.STARTING:
        yield ok("disk tier", "is opened when the arena is populated")
    else:
        yield from _standing(snapshot.disk)


def _folder(path: Path) -> Result:
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir():
        return problem("disk folder", f"{there} is not a folder: set another disk.path")
    if not os.access(there, os.W_OK | os.X_OK):
        return problem("disk folder", f"this user cannot write to {there}: chown it, or set another disk.path")
    return ok("disk folder", f"{path}{'' if there == path else ' does not exist yet: pagetierd creates it'}")


def _file_system(path: Path, host: Host) -> Result:
    there = next(folder for folder in (path, *path.parents) if folder.exists()).resolve()
    mounts = [mount for mount in read_mounts(host.root / "proc/self/mountinfo") if there.is_relative_to(mount.point)]
    kind = max(mounts, key=lambda mount: len(str(mount.point))).kind if mounts else "?"
    if kind in _VOLATILE:
        return warning("disk system", f"{there} is {kind}: its pages do not survive a reboot")
    if kind in _NETWORKED:
        return warning("disk system", f"{there} is {kind}: LMDB needs a local file system")
    return ok("disk system", f"{there} is {kind}")


def _room(config: Config, host: Host, in_use: int) -> Result:
    path, size = config.disk.path, config.disk.size
    assert path is not None
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    stat = host.statvfs(there)
    free = stat.f_bavail * stat.f_frsize
    if free + in_use >= size:
        return ok(
            "disk room",
            f"{format_size(free)} free; {format_size(in_use)} of {format_size(size)} are in use already;"
            f" {room_of_disk(config)}",
        )
    fits = f'disk.size = "{spell_size((free + in_use) // 2**20 * 2**20)}" would fit'
    return problem("disk room", f"{format_size(free)} free, but {format_size(size - in_use)} more are needed: {fits}")


def _taken(path: Path) -> int:
    try:
        return sum(file.stat().st_blocks * 512 for file in path.rglob("data.mdb"))
    except OSError:
        return 0


def _standing(disk: DiskReport) -> Iterator[Result]:
    if disk.standing is Standing.DOWN:
        yield problem("disk tier", f"down: {disk.trouble}")
    elif disk.trouble:
        yield problem("disk tier", disk.trouble)
    elif disk.standing is Standing.NONE:
        yield problem("disk tier", "the daemon runs without a disk tier: it was started with another configuration")
    else:
        yield ok("disk tier", f"{disk.standing.value}, found {disk.opened or 'not yet'}; {synced(disk)}")
    if disk.damaged:
        yield warning(
            "disk pages", f"{counted(disk.damaged, 'page')} failed verification by checksum: the device may be failing"
        )
    if disk.note:
        yield warning("disk files", disk.note)
    if disk.disk_total and disk.disk_free < _CLOSE * disk.disk_total:
        yield warning("disk room", f"less than 5 % of the file system is free: {format_size(disk.disk_free)}")
    yield from _budget(disk)


def _budget(disk: DiskReport) -> Iterator[Result]:
    if disk.budget is not None and not disk.budget.skipped_bytes:
        left, per_day = format_size(disk.budget.left), format_size(disk.budget.per_day)
        yield ok("disk budget", f"{left} of {per_day} per day are left now")
    elif disk.budget is not None:
        skipped = format_size(disk.budget.skipped_bytes)
        yield warning(
            "disk budget", f"{skipped} were not written because the budget was used up: raise disk.budget to write more"
        )
