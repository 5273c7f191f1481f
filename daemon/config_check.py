"""`pagetierd --check`: says that a valid configuration is valid, and what it means on this host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pagetier.daemon.config.disk_capacity import disk_capacity_text
from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.config.loader import ConfigError
from pagetier.daemon.config.schema import Config
from pagetier.daemon.config.token import read_token
from pagetier.daemon.config.validation import beyond_its_disk
from pagetier.daemon.host.arena_fit import fit, need_of
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.mounts import mount_of
from pagetier.shm.segment_files import survey
from pagetier.shm.units import format_size, spell_size


def check_config(config: Config, host: Host) -> Iterator[str]:
    """Yields lines for people. The configuration may be meant for another host, so what does not fit is a warning.

    Raises:
        ConfigError: The fleet needs something that is missing or wrong here: without it, the daemon would start and
            serve from this host only. For a worker that is a service it is a warning: it may run in another image.
    """
    yield "the configuration is valid"
    arena, disk = config.arena, config.disk
    yield f"memory: {format_size(arena.whole_size)} in {arena.frames:,} frames of {spell_size(arena.frame_size)}"
    if disk.size:
        yield f"disk: {disk_capacity_text(config)} under a cap of {format_size(disk.total_size)}"
        for device in disk.devices:
            yield from _disk_warnings(device, host)
    yield from _index_warnings(config)
    if config.remote.url:
        yield f"fleet: {config.remote.url}"
        yield from _check_fleet(config)
    if config.http.listen:
        yield f"http: {', '.join(map(str, config.http.listen))}"
    if config.metrics.listen is not None:
        yield f"metrics: {config.metrics.listen}"
    yield from _token_warnings(config)
    yield from _socket_warnings(config, host)
    in_use = sum(found.nbytes for found in survey() if found.name == config.name)
    verdict = fit(host, need_of(config, in_use))
    if not verdict.fits:
        yield f"warning: on this host {verdict.explain()}"


def _token_warnings(config: Config) -> Iterator[str]:
    try:
        read_token(config.http.token_file)
    except ConfigError as error:
        yield f"warning: on this host {error}"


def _index_warnings(config: Config) -> Iterator[str]:
    if config.index.entries and config.index.entries < config.arena.frames:
        entries = f"index.entries = {config.index.entries:,}"
        yield f"warning: {entries} pages leave some of the {config.arena.frames:,} frames unused: raise it, or set 0"


def _socket_warnings(config: Config, host: Host) -> Iterator[str]:
    metrics = config.metrics.listen
    paths = [("socket", config.socket), *(("http.listen", each.path) for each in config.http.listen)]
    paths += [("metrics.listen", metrics.path)] if metrics is not None else []
    for setting, path in paths:
        if path is not None and (flaw := folder_flaw(path.parent, host)):
            yield f"warning: on this host {flaw}: set another {setting}"


_NO_FILES: Final = ("proc", "sysfs", "cgroup", "cgroup2", "devpts", "debugfs", "tracefs", "bpf", "securityfs")


def existing_folder(path: Path) -> Path:
    """Returns the path, or the nearest above it that exists, as far as this user can see."""
    return next(place for place in (path, *path.parents) if os.path.exists(place))  # noqa: PTH110  never raises


def folder_flaw(path: Path, host: Host) -> str:
    """Returns why there can be no folder with files at a path, whichever user creates it; or ""."""
    there = existing_folder(path).resolve()
    if not there.is_dir():
        return f"{there} is not a folder"
    mount = mount_of(there, host.mounts())
    if mount is not None and mount.kind in _NO_FILES:
        return f"{path} lies in {mount.point}, of type {mount.kind}, where no files can be created"
    return ""


def _check_fleet(config: Config) -> Iterator[str]:
    from pagetier.tiers.base import TierError
    from pagetier.tiers.fleet.check_host import check_host

    try:
        check_host(config.remote.fleet)
    except TierError as error:
        if config.remote.worker == "spawn":
            raise ConfigError(f"fleet: {error}") from error
        yield f"warning: on this host {error}"


def _disk_warnings(disk: DeviceOptions, host: Host) -> Iterator[str]:
    if flaw := folder_flaw(disk.path, host):
        yield f"warning: on this host {flaw}: set another disk.path"
        return
    stat = host.statvfs(existing_folder(disk.path))
    if too_large := beyond_its_disk(disk, stat.f_blocks * stat.f_frsize):
        yield f"warning: on this host {too_large}"
