"""`pagetierd --check`: says that a valid configuration is valid, and what it means on this host."""

from __future__ import annotations

from collections.abc import Iterator

from pagetier.daemon.config.capacity import disk_capacity_text
from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.config.loader import ConfigError
from pagetier.daemon.config.schema import Config
from pagetier.daemon.config.token import read_token
from pagetier.daemon.config.validation import beyond_its_disk
from pagetier.daemon.host.arena_fit import fit, need_of
from pagetier.daemon.host.host import Host
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
    if config.remote.url:
        yield f"fleet: {config.remote.url}"
        yield from _check_fleet(config)
    if config.http.listen:
        yield f"http: {', '.join(map(str, config.http.listen))}"
        yield from _token_warnings(config)
    in_use = sum(found.nbytes for found in survey() if found.name == config.name)
    verdict = fit(host, need_of(config, in_use))
    if not verdict.fits:
        yield f"warning: on this host {verdict.explain()}"


def _token_warnings(config: Config) -> Iterator[str]:
    try:
        read_token(config.http.token_file)
    except ConfigError as error:
        yield f"warning: on this host {error}"


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
    there = next(place for place in (disk.path, *disk.path.parents) if place.exists())
    if not there.is_dir():
        yield f"warning: on this host {there} is not a folder: set another disk.path"
        return
    stat = host.statvfs(there)
    if too_large := beyond_its_disk(disk, stat.f_blocks * stat.f_frsize):
        yield f"warning: on this host {too_large}"
