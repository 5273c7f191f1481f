"""`pagetier doctor`."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click

from pagetier.daemon.cli.config import config_of
from pagetier.daemon.cli.daemon_connection import Refused, Unreachable, daemon_at
from pagetier.daemon.cli.doctor.bug_report import require_new, write_report
from pagetier.daemon.cli.doctor.daemon_checks import (
    check_charge,
    check_daemon,
    check_folder,
    check_leftovers,
    check_socket,
    unreachable,
)
from pagetier.daemon.cli.doctor.disk_checks import check_disk
from pagetier.daemon.cli.doctor.fleet_checks import check_fleet, check_fleet_folder
from pagetier.daemon.cli.doctor.host_checks import (
    check_arena_size,
    check_huge_pages,
    check_kernel,
    check_locked_memory,
    check_room,
    check_shared_memory,
    check_users,
)
from pagetier.daemon.cli.doctor.result import Level, Result, ok
from pagetier.daemon.cli.doctor.write_check import check_write
from pagetier.daemon.config.cli_options import NonEmptyPath
from pagetier.daemon.config.live_settings import LiveSettings
from pagetier.daemon.config.loader import FILE_VARIABLE, ConfigError, ConfigReader
from pagetier.daemon.config.schema import Config
from pagetier.daemon.host.host import Host
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.status.huge_page_report import HugePageReport
from pagetier.shm.exit_codes import Exit

_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}
_INDENT = 24
_FILE = "/etc/pagetier/pagetierd.toml"  # as the systemd units name it


@click.command()
@click.option(
    "--socket",
    type=NonEmptyPath(readable=False),
    help="The daemon's control socket. [default: as configured]",
)
@click.option(
    "--config",
    type=NonEmptyPath(readable=False),
    help="The daemon's configuration file. [default: $PAGETIER_CONFIG]",
)
@click.option(
    "--report",
    type=NonEmptyPath(readable=False),
    metavar="FILE",
    help="Also write checks, versions, settings and statistics into a new FILE, for a bug report; without secrets.",
)
@click.option(
    "--write", "writes", flag_value="write", help="Also store, match, load and drop a page, as an engine of this user."
)
def doctor(socket: Path | None, config: Path | None, report: Path | None, writes: str | None) -> None:
    """Check the host and the daemon; each line says ok or what to do.

    Changes nothing, but with a fleet writes one page of its own to the store and removes it. With --write it does the
    same with a page in memory, and measures each step. This is no traffic: of the counters, only those of granted and
    of flushed pages rise, each by one. But a full arena evicts its coldest pages for it. Run it as root or as the
    daemon's user. With --config it also says whether a restart with this file would keep the pages; without, a daemon
    that runs is checked by its own settings.

    Exit codes: 0: no problems (warnings possible); 1: problems found; 2: invalid usage or configuration.
    """
    named = config is not None or FILE_VARIABLE in os.environ
    check = _check if named else _check_as_it_runs
    settings = _load(socket, config)
    if report is not None:
        require_new(report)
    results = []
    for result in chain(check(settings.config, Host()), check_write(settings.config.socket) if writes else ()):
        _show(result)
        results.append(result)
    if report is not None:
        write_report(report, results, settings)
    levels = [result.level for result in results]
    problems, warnings = levels.count(Level.PROBLEM), levels.count(Level.WARNING)
    click.echo(f"{_number(problems, 'problem')}, {_number(warnings, 'warning')}")
    sys.exit(Exit.WRONG if problems else Exit.OK)


def _load(socket: Path | None, config: Path | None) -> LiveSettings:
    reader = ConfigReader(config, os.environ, {"socket": str(socket.absolute()) if socket is not None else None})
    try:
        settings = LiveSettings(reader.read())
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    settings.sources = reader.sources
    return settings


def _check_as_it_runs(config: Config, host: Host) -> Iterator[Result]:
    """Checks with the settings of the daemon that runs, if one does, else with `config`."""
    try:
        with daemon_at(config.socket) as daemon:
            config = config_of(daemon)
        yield ok("configuration", f"checked with the settings of the running daemon{_file_hint(host)}")
    except (Unreachable, Refused, ConfigError):
        given = f"checked with the defaults and PAGETIER_* variables{_file_hint(host)}"
        yield ok("configuration", f"no daemon gave its settings (see daemon below): {given}")
    yield from _check(config, host)


def _file_hint(host: Host) -> str:
    return f"; --config {_FILE} checks this file too" if (host.root / _FILE[1:]).exists() else ""


def _check(config: Config, host: Host) -> Iterator[Result]:
    yield check_shared_memory(host)
    yield from check_arena_size(config, host)
    yield check_locked_memory(config, host)
    yield from check_kernel(host)
    yield check_users(config.access, host)
    yield check_folder(config.socket.parent)
    yield from check_socket(config.socket, config.access)
    try:
        with daemon_at(config.socket) as daemon:
            snapshot = take_snapshot(daemon.observer)
            yield check_huge_pages(config, host, snapshot.huge_pages)
            yield from check_daemon(daemon, config)
            yield from check_charge(daemon, config, host)
            yield from check_disk(config, host, snapshot)
            yield from check_fleet(config.remote, snapshot.fleet)
    except Unreachable as error:
        yield check_huge_pages(config, host, HugePageReport())
        yield unreachable(error.message, config.name)
        yield check_room(config, host)
        yield from check_disk(config, host, None)
        yield from check_fleet(config.remote, FleetStatus())
    yield from check_fleet_folder(config.remote, host)
    yield from check_leftovers()


def _show(result: Result) -> None:
    level = click.style(f"{result.level.value:<8}", fg=_COLOURS[result.level])
    click.echo(f"{level} {result.what:<{_INDENT - 10}} {_wrapped(result.text)}")


def _wrapped(text: str) -> str:
    """Returns the text, wrapped and indented on a terminal, in one line elsewhere."""
    if not sys.stdout.isatty():
        return text
    width = max(40, shutil.get_terminal_size().columns - _INDENT)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return ("\n" + " " * _INDENT).join(lines)


def _number(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"
