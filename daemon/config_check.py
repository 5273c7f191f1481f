"""`pagetierd --check`: says that a valid configuration is valid, and what it means on this host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pagetier.daemon.config.disk_capacity import disk_capacity_text
from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.config.loader import ConfigError
from pagetier.daemon.config.schema import Config
from pagetier.daemon.config.token import read_token
from pagetier.daemon.config.validation import beyond_its_disk
from pagetier.daemon.host.arena_fit import fit, need_of, serves
from pagetier.daemon.host.disk_space import space_seen
from pagetier.daemon.host.folders import existing_folder, why_no_folder
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.listening_socket import check_folder
from pagetier.shm._core import ShmError
from pagetier.shm.segment_files import existing_geometry, survey
from pagetier.shm.units import format_size, spell_size
from pagetier.tiers.disk_folder import folder_remedy


def check_config(config: Config, host: Host) -> Iterator[str]:
    """Yields lines for people. What a start would overcome on this host, such as a disk that is absent, is a warning.

    What another daemon of this configuration has, which may run now, counts as free.

    Raises:
        ConfigError: The token cannot be read; or the fleet needs something that is missing or wrong here: without it,
            the daemon would start and serve from this host only. For a worker that is a service it is a warning: it may
            run in another image.
        SocketError: This user cannot create a socket.
        ShmError: The arena does not fit.
    """
    _check_start(config, host)
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
    if not _serves_http(config):
        yield from _token_warnings(config)


def _check_start(config: Config, host: Host) -> None:
    """Raises what a start would raise on this host, in its order."""
    have = existing_geometry(config.name)
    if have is None or not serves(have, config):
        in_use = sum(found.nbytes for found in survey() if found.name == config.name)
        verdict = fit(host, need_of(config, in_use))
        if not verdict.fits:
            raise ShmError(verdict.explain())
    for setting, path in _socket_paths(config):
        check_folder(path, setting)
    if _serves_http(config):
        read_token(config.http.token_file)


def _serves_http(config: Config) -> bool:
    return bool(config.http.listen) or config.metrics.listen is not None


def _token_warnings(config: Config) -> Iterator[str]:
    try:
        read_token(config.http.token_file)
    except ConfigError as error:
        yield f"warning: on this host {error}"


def _index_warnings(config: Config) -> Iterator[str]:
    if config.index.entries and config.index.entries < config.arena.frames:
        entries = f"index.entries = {config.index.entries:,}"
        yield f"warning: {entries} pages leave some of the {config.arena.frames:,} frames unused: raise it, or set 0"


def _socket_paths(config: Config) -> Iterator[tuple[str, Path]]:
    """Yields the paths of sockets with their settings."""
    yield "socket", config.socket
    yield from (("http.listen", each.path) for each in config.http.listen if each.path is not None)
    if config.metrics.listen is not None and config.metrics.listen.path is not None:
        yield "metrics.listen", config.metrics.listen.path


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
    if why := why_no_folder(disk.path, host.mounts()):
        yield f"warning: on this host {why}: set another disk.path"
        return
    there = existing_folder(disk.path)
    if not os.access(there, os.W_OK | os.X_OK):
        remedy = folder_remedy(disk.path) or "its file system is read-only"
        yield f"warning: no disk tier: {disk.path} cannot be used; {remedy}"
    if too_large := beyond_its_disk(disk, space_seen(disk.path, host).room):
        yield f"warning: on this host {too_large}"
