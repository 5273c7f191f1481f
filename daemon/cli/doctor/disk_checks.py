"""Checks the disk tier: folder, free space, file system and state. Changes nothing."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from pagetier.daemon.cli.doctor.result import Level, Result, ok, problem, warning
from pagetier.daemon.cli.tier_text import at_opening, synced
from pagetier.daemon.config.disk_capacity import device_capacity_text
from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.config.schema import Config
from pagetier.daemon.host.disk_space import DiskSpace, space_seen
from pagetier.daemon.host.folders import existing_folder, why_no_folder
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.mounts import VOLATILE, mount_of
from pagetier.daemon.stats.snapshot import Snapshot
from pagetier.daemon.status.disk_report import DeviceReport, DiskReport, Standing
from pagetier.daemon.status.phase import Phase
from pagetier.daemon.unreadable_pages import REMEDY, unreadable_pages
from pagetier.shm.units import counted, format_size, spell_size
from pagetier.tiers.capacity import fits_a_frame
from pagetier.tiers.disk_folder import folder_remedy

_UNITS = "etc/systemd/system"


def check_service_may_write(config: Config, host: Host) -> Iterator[Result]:
    """Checks whether an installed service may write to the disk tier's folders: it may write only to its own."""
    for path in config.disk.path:
        yield from _check_service_may_write(config, path, host)


def _check_service_may_write(config: Config, path: Path, host: Host) -> Iterator[Result]:
    own = Path("/var/lib") / config.name
    tenant = config.name.removeprefix("pagetier").removeprefix("-")
    kind = "pagetierd@" if tenant else "pagetierd"
    units = host.root / _UNITS
    if path.is_relative_to(own) or not (units / f"{kind}.service").exists():
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
_CLOSE = 0.05


def check_disk(config: Config, host: Host, snapshot: Snapshot | None) -> Iterator[Result]:
    """Checks the configured disk tier. snapshot: of the daemon; None if none answers."""
    if not config.disk.path:
        if snapshot is not None and snapshot.disk.standing is not Standing.NONE:
            yield from _standing(snapshot.disk)
        else:
            yield ok("disk", "no disk tier is configured (disk.path and disk.size)")
        return
    reports = {device.folder: device for device in snapshot.disk.devices} if snapshot is not None else {}
    for device in config.disk.devices:
        report = reports.get(str(device.path))
        if report is None or report.standing is not Standing.OPEN:  # an open device proves that its daemon may write
            found = _folder(device.path, host)
            if found.level is not Level.OK or report is None or not report.trouble:  # else see the tier's own line
                yield found
    yield from check_service_may_write(config, host)
    for device in config.disk.devices:
        yield from _check_device(device, config.arena.frame_size, reports.get(str(device.path)), host)
    if snapshot is not None:
        yield from _standing_of(snapshot)


def _check_device(device: DeviceOptions, frame: int, report: DeviceReport | None, host: Host) -> Iterator[Result]:
    yield _file_system(device.path, host)
    yield _room(device, frame, _space(device.path, report, host))
    if why := unreadable_pages(device, frame):
        yield (problem if report is None else warning)("disk pages", f"{why}: {REMEDY}")


def _standing_of(snapshot: Snapshot) -> Iterator[Result]:
    if snapshot.daemon.phase is Phase.STARTING:
        yield ok("disk tier", "is opened when the arena is populated")
    else:
        yield from _standing(snapshot.disk)


def _folder(path: Path, host: Host) -> Result:
    there = existing_folder(path)
    if why := why_no_folder(path, host.mounts()):
        return problem("disk folder", f"{why}: set another disk.path")
    if not os.access(there, os.W_OK | os.X_OK):
        remedy = folder_remedy(path) or "set another disk.path"
        return problem("disk folder", f"{path} cannot be used, since {there} cannot be written: {remedy}")
    if there == path and path.stat().st_mode & stat.S_IWOTH:
        name = shlex.quote(str(path))
        return problem("disk folder", f"all users may write to {path}: chmod o-w {name}, or set another disk.path")
    return ok("disk folder", f"{path}{'' if there == path else ' does not exist yet: pagetierd creates it'}")


def _file_system(path: Path, host: Host) -> Result:
    there = existing_folder(path).resolve()
    mount = mount_of(there, host.mounts())
    kind = mount.kind if mount is not None else "?"
    if kind in VOLATILE:
        return warning("disk system", f"{there} is {kind}: its pages do not survive a reboot")
    if kind in _NETWORKED:
        return warning("disk system", f"{there} is {kind}: LMDB needs a local file system")
    return ok("disk system", f"{there} is {kind}")


def _space(path: Path, report: DeviceReport | None, host: Host) -> DiskSpace:
    """Returns what a worker has measured at one moment; without one, what is seen here."""
    if report is not None and report.standing is Standing.OPEN and report.disk_total:
        return DiskSpace(report.disk_free, report.file_bytes)
    seen = space_seen(path, host)
    reported = report.file_bytes if report is not None else 0  # this user may not be allowed to look
    return DiskSpace(seen.free, max(seen.in_use, reported))


def _room(device: DeviceOptions, frame: int, space: DiskSpace) -> Result:
    path, size, (free, in_use) = device.path, device.size, space
    if space.room >= size:
        return ok(
            "disk room",
            f"{format_size(free)} free; {format_size(in_use)} of {format_size(size)} are in use already;"
            f" {device_capacity_text(device, frame)}",
        )
    needed = f"{format_size(free)} free, but {format_size(size - in_use)} more are needed"
    fitting = space.room // 2**20 * 2**20
    if not fits_a_frame(device.store, fitting, device.environments, frame, device.compress):
        return problem("disk room", f"{path}: {needed}: no disk tier fits: free some space, or set another disk.path")
    return warning("disk room", f'{path}: {needed}: disk.size = "{spell_size(fitting)}" would fit')


def _standing(disk: DiskReport) -> Iterator[Result]:
    if disk.several:
        yield from map(_standing_of_device, disk.devices)
    else:
        yield _standing_of_tier(disk)
    if disk.damaged:
        yield warning(
            "disk pages", f"{counted(disk.damaged, 'page')} failed verification by checksum: the device may be failing"
        )
    if disk.note:
        yield warning("disk files", disk.note)
    if disk.disk_total and disk.disk_free < _CLOSE * disk.disk_total:
        yield warning("disk room", f"less than 5 % of the file system is free: {format_size(disk.disk_free)}")
    yield from _budget(disk)


def _standing_of_tier(disk: DiskReport) -> Result:
    if disk.standing is Standing.DOWN:
        return problem("disk tier", f"down: {disk.trouble}")
    if disk.trouble:
        return problem("disk tier", disk.trouble)
    if disk.standing is Standing.NONE:
        return problem("disk tier", "the daemon runs without a disk tier: it was started with another configuration")
    return ok("disk tier", f"{disk.standing.value}; {at_opening(disk)}; {synced(disk)}")


def _standing_of_device(device: DeviceReport) -> Result:
    if device.standing is Standing.DOWN or device.trouble:
        return problem("disk device", f"{device.folder} is {device.standing.value}: {device.trouble}")
    state = f"{device.standing.value}; {at_opening(device)}; {synced(device)}"
    return ok("disk device", f"{device.folder} is {state}")


def _budget(disk: DiskReport) -> Iterator[Result]:
    if disk.budget is not None and not disk.budget.skipped_bytes:
        left, per_day = format_size(disk.budget.left), format_size(disk.budget.per_day)
        yield ok("disk budget", f"{left} of {per_day} per day are left now")
    elif disk.budget is not None:
        skipped = format_size(disk.budget.skipped_bytes)
        yield warning(
            "disk budget", f"{skipped} were not written because the budget was used up: raise disk.budget to write more"
        )
