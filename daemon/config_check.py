"""`pagetierd --check`: says that a valid configuration is valid, and what it means on this host."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from pagetier.daemon.config.disk_capacity import disk_capacity_text
from pagetier.daemon.config.mistakes import ConfigError, Mistakes
from pagetier.daemon.config.schema import Config
from pagetier.daemon.config.token import read_token
from pagetier.daemon.host.arena_fit import too_large
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.listening_socket import SocketError
from pagetier.shm._core import ShmError
from pagetier.shm.log_format import event, formatter
from pagetier.shm.segments import Leftovers, UnfitError
from pagetier.shm.units import format_size, spell_size

if TYPE_CHECKING:
    from pagetier.daemon.segments_check import FoundDaemon

_WARNING: Final = "warning: "


def check_config(config: Config, host: Host, leftovers: Leftovers = Leftovers.ADOPT) -> Iterator[str]:
    """Yields lines for people. What a start would overcome on this host, such as a disk that is absent, is a warning.

    What the running daemon of this name has counts as free: the check may stand before its restart or reload.

    Args:
        config: The configuration.
        host: This host.
        leftovers: What the start would do with the pages that an earlier daemon has left.

    Raises:
        ConfigError: The token cannot be read; or the fleet needs something that is missing or wrong here: without it,
            the daemon would start and serve from this host only. For a worker that is a service it is a warning: it may
            run in another image. So is a folder that is away beside a running daemon, which can be reloaded then. The
            message of this and the others has all that would be raised; the warnings are written to stderr before.
        SocketError: A socket cannot be opened.
        ShmError: The arena does not fit, or segments belong to another user.
        UnfitError: An earlier daemon has left pages that a start would refuse.

    Yields:
        The lines.
    """
    from pagetier.daemon.segments_check import check_segments, find_index  # a start does not pay for it

    found = find_index(config.name)
    daemon = found.daemon if found is not None else None
    mistakes = Mistakes(ConfigError, SocketError, ShmError, UnfitError)
    remarks: list[str] = []
    _check_sockets(config, daemon, mistakes)
    if config.remote.url:
        with mistakes.noted():
            remarks += _check_fleet(config, daemon)
    with mistakes.noted():
        remarks += _check_pages_on_disk(config, daemon, leftovers)
    with mistakes.noted():
        remarks += check_segments(config, host, found, leftovers)
    lines = [*_lines(config, host, daemon), *remarks]
    if mistakes:
        _write_warnings(line for line in lines if line.startswith(_WARNING))
    mistakes.raise_all()
    yield from lines


def _write_warnings(lines: Iterable[str]) -> None:
    """Writes warnings to stderr: as they are on a terminal, else as lines of the log."""
    for line in lines:
        with suppress(OSError):
            click.echo(line if sys.stderr.isatty() else _log_line(line), err=True)


def _log_line(warning: str) -> str:
    record = logging.LogRecord("pagetierd", logging.WARNING, "", 0, "%s", (warning.removeprefix(_WARNING),), None)
    vars(record).update(event("check_warning"))
    return formatter().format(record)


def _lines(config: Config, host: Host, daemon: FoundDaemon | None) -> Iterator[str]:
    from pagetier.daemon.disk_check import disk_warnings
    from pagetier.daemon.sockets_check import access_warnings, in_new_folder

    yield "the configuration is valid"
    arena, disk = config.arena, config.disk
    yield f"memory: {format_size(arena.whole_size)} in {arena.frames:,} frames of {spell_size(arena.frame_size)}"
    if disk.size:
        yield f"disk: {disk_capacity_text(config)} under a cap of {format_size(disk.total_size)}"
        for device in disk.devices:
            yield from disk_warnings(device, host, daemon.folders if daemon is not None else ())
    yield from _memory_warnings(config, host)
    yield f"socket: {config.socket}{in_new_folder(config.socket)}"
    if config.remote.url:
        yield f"fleet: {config.remote.url}"
    if config.http.listen:
        yield f"http: {', '.join(map(str, config.http.listen))}"
    if config.metrics.listen is not None:
        yield f"metrics: {config.metrics.listen}"
    if not _serves_http(config):
        yield from _token_warnings(config)
    yield from access_warnings(config)


def _check_sockets(config: Config, daemon: FoundDaemon | None, mistakes: Mistakes) -> None:
    """Collects what a start would raise because of its sockets and their token."""
    from pagetier.daemon.sockets_check import check_control_socket, check_http_socket, http_addresses

    with mistakes.noted():
        check_control_socket(config, daemon)
    if _serves_http(config):
        with mistakes.noted():
            read_token(config.http.token_file)
    for setting, address in http_addresses(config):
        with mistakes.noted():
            check_http_socket(address, setting, daemon)


def _serves_http(config: Config) -> bool:
    return bool(config.http.listen) or config.metrics.listen is not None


def _token_warnings(config: Config) -> Iterator[str]:
    try:
        read_token(config.http.token_file)
    except ConfigError as error:
        yield f"warning: on this host {error}"


def _memory_warnings(config: Config, host: Host) -> Iterator[str]:
    if why := too_large(host, config.arena.whole_size):
        yield f"warning: {why}"
    if config.index.entries and config.index.entries < config.arena.frames:
        entries = f"index.entries = {config.index.entries:,}"
        yield f"warning: {entries} pages leave some of the {config.arena.frames:,} frames unused: raise it, or set 0"


def _check_pages_on_disk(config: Config, daemon: FoundDaemon | None, leftovers: Leftovers) -> Iterator[str]:
    """Yields a warning for pages on disk that only other settings read. Raises UnfitError if a start would refuse."""
    from pagetier.daemon.unreadable_pages import REMEDY, UnreadablePagesError, all_unreadable

    for why in all_unreadable(config):
        if leftovers is Leftovers.DISCARD:
            yield f"warning: {why}: --fresh discards them"
        elif daemon is None:
            raise UnreadablePagesError(f"{why}: {REMEDY}")
        else:
            yield f"warning: {why}: {REMEDY}"


def _check_fleet(config: Config, daemon: FoundDaemon | None) -> Iterator[str]:
    from pagetier.tiers.base import TierError
    from pagetier.tiers.fleet.check_host import FolderAwayError, check_host

    try:
        check_host(config.remote.fleet)
    except TierError as error:
        is_away = daemon is not None and isinstance(error, FolderAwayError)
        if config.remote.worker == "spawn" and not is_away:
            raise ConfigError(f"fleet: {error}") from error
        yield f"warning: on this host {error}"
