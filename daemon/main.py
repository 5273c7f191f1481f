"""`pagetierd`: reads its configuration, opens the segments, and serves until it is stopped."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import sys
from contextlib import closing, suppress
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from pagetier.daemon.common.child_environ import environ_without_credentials
from pagetier.daemon.common.systemd_notify import Notifier
from pagetier.daemon.common.version_option import version_option
from pagetier.daemon.config.cli_options import NonEmptyPath, changes_meant, config_flags, config_options
from pagetier.daemon.config.loader import ConfigError, ConfigReader
from pagetier.daemon.config.mistakes import log_lines
from pagetier.daemon.config.schema import Config
from pagetier.daemon.config_check import check_config
from pagetier.daemon.host.arena_fit import fit, geometry_of, need_of, serves, too_large
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.listening_socket import SocketError
from pagetier.daemon.host.prefault import PrefaultError
from pagetier.daemon.lifecycle import RunContext, run
from pagetier.daemon.memory_release import name_meant, release_as_owner
from pagetier.daemon.server.control_socket import Server
from pagetier.daemon.stop_signals import Reported
from pagetier.daemon.unreadable_pages import REMEDY, UnreadablePagesError, found_at_start
from pagetier.daemon.workers.worker_link import ChildWorkers
from pagetier.shm._core import ShmError
from pagetier.shm.exit_codes import Exit, exit_code_help
from pagetier.shm.failpoints import point
from pagetier.shm.geometry import Geometry
from pagetier.shm.log_format import event, formatter, log_to_stderr
from pagetier.shm.protocol import BUILD
from pagetier.shm.segment_files import InUseError
from pagetier.shm.segments import Leftovers, Origin, SegmentRequest, Segments, UnfitError, take
from pagetier.shm.stdio import exit_if_stdout_fails

log = logging.getLogger("pagetierd")


class DaemonCommand(click.Command):
    """A command that reports usage errors in a unit file or a container like all its other errors."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parses the command line, and answers --help and --version."""
        try:
            with exit_if_stdout_fails():
                return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if sys.stderr.isatty():
                raise
            give_up(Exit.USAGE, f"{error.format_message()} (see pagetierd --help)")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the command line. The error for a setting without a flag of its own says how to give it."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            near = changes_meant(error.option_name) or error.possibilities
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=ctx) from error


class Invocation(msgspec.Struct, frozen=True):
    """What a caller of `main` passes beside the command line.

    Attributes:
        early: The signals that arrived so far.
        defaults: The configuration without what is given; of another one than the product's, all constants.
    """

    early: Reported | None = None
    defaults: Config | None = None


class Action(Enum):
    """An action in place of serving."""

    CHECK = "check"
    RELEASE_MEMORY = "release memory"


@click.command(
    cls=DaemonCommand,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exit_code_help(Exit.OK, Exit.USAGE, Exit.REFUSED, Exit.UNFIT),
)
@version_option
@click.option(
    "--config",
    type=NonEmptyPath(readable=False),
    help="Configuration file (TOML). [default: $PAGETIER_CONFIG, or none]",
)
@click.option(
    "--fresh",
    "leftovers",
    flag_value=Leftovers.DISCARD,
    default=Leftovers.ADOPT,
    type=click.UNPROCESSED,
    help="Discard the pages that an earlier daemon left in memory, and those on disk that only other settings read.",
)
@click.option(
    "--keep-while",
    type=NonEmptyPath(),
    help="While this file or folder exists, SIGTERM keeps the pages in memory for the next daemon.",
)
@click.option(
    "--check",
    "action",
    flag_value=Action.CHECK,
    type=click.UNPROCESSED,
    help="Check the configuration, and whether a start here would fail, and exit.",
)
@click.option(
    "--release-memory",
    "action",
    flag_value=Action.RELEASE_MEMORY,
    type=click.UNPROCESSED,
    help="Release the memory that an earlier daemon left, and exit; root may do so for every user.",
)
@config_options
@click.pass_obj
def main(
    invocation: Invocation | None,
    /,
    config: Path | None,
    leftovers: Leftovers,
    keep_while: Path | None,
    action: Action | None,
    **flags: Any,
) -> None:
    """Keep KV pages in host memory for the inference engines of this host.

    Every setting can be given in a TOML file, as an environment variable, or by --set. Variables override the file,
    and --set overrides both: arena.numa is `numa` in the table [arena], PAGETIER_ARENA_NUMA and --set arena.numa=VALUE.
    `pagetier doctor` checks whether this host is ready.

    SIGTERM and SIGINT stop the daemon and release its memory. SIGUSR1 stops it and keeps the pages in memory for the
    next daemon, as a crash does. SIGHUP reloads the configuration; memory sizes, names and paths need a restart.
    """
    invocation = invocation or Invocation()
    reader = ConfigReader(config, os.environ, config_flags(flags), invocation.defaults)
    try:
        if action is Action.RELEASE_MEMORY:
            log_to_stderr("info")
            release_as_owner(name_meant(config, os.environ, config_flags(flags)))
            return
        settings = reader.read()
        if action is Action.CHECK:
            found = "\n".join(check_config(settings, Host(), leftovers))
            with exit_if_stdout_fails():
                click.echo(found)
        else:
            unreadable = found_at_start(settings)  # before the log has a thread
            log_to_stderr(settings.log.level)
            _require_pages_on_disk(unreadable, settings.name, leftovers)
            _start(_with_discards(settings, leftovers), leftovers, reader, keep_while, invocation.early)
    except ConfigError as error:
        give_up(Exit.USAGE, error)
    except InUseError as error:
        from pagetier.daemon.segments_in_use import why_in_use  # a start that succeeds does not pay for it

        give_up(Exit.REFUSED, why_in_use(reader.read(), error))
    except UnreadablePagesError as error:
        give_up(Exit.UNFIT, error)
    except UnfitError as error:
        give_up(Exit.UNFIT, f"{error}; {_remedy(keep_while)}")
    except (ShmError, SocketError, PrefaultError, OSError) as error:
        give_up(Exit.REFUSED, error)


def _remedy(keep_while: Path | None) -> str:
    if keep_while is None:
        return "--fresh discards what is in them"
    return "`systemctl stop` and then `systemctl start` discard what is in them, a restart does not"


def _require_pages_on_disk(unreadable: str, name: str, leftovers: Leftovers) -> None:
    """Refuses pages on disk that a start without --fresh would lose.

    Raises:
        UnreadablePagesError: There are such pages.
        InUseError: There are, but also a daemon of this name, beside which no settings would start.
    """
    if not unreadable:
        return
    from pagetier.daemon.segments_in_use import require_unused  # a start that succeeds does not pay for it

    require_unused(name)
    if leftovers is Leftovers.ADOPT:
        raise UnreadablePagesError(f"{unreadable}: {REMEDY}")
    log.warning("%s: --fresh discards them", unreadable, extra=event("leftovers_dropped"))


def _with_discards(settings: Config, leftovers: Leftovers) -> Config:
    """Returns the configuration, by which workers discard pages that only other settings read after --fresh only."""
    disk = msgspec.structs.replace(settings.disk, discards=leftovers is Leftovers.DISCARD)
    return msgspec.structs.replace(settings, disk=disk)


def _start(
    settings: Config, leftovers: Leftovers, reader: ConfigReader, keep_while: Path | None, early: Reported | None
) -> None:
    """Starts the workers of the disk, which get ready while the segments are made, and serves until it is stopped."""
    with closing(ChildWorkers(environ_without_credentials())) as workers:
        workers.start_ahead(len(settings.disk.devices))
        context = RunContext(Notifier(os.environ), reader.read, keep_while, lambda: reader.sources, workers)
        _serve(settings, leftovers, context, early)


def _serve(settings: Config, leftovers: Leftovers, context: RunContext, early: Reported | None) -> None:
    if context.notifier.watchdog is not None:
        faulthandler.enable()  # the watchdog's SIGABRT then prints where the process hung
    with Reported(earlier=early) as signals:
        segments = _take(settings, leftovers, context.keep_while)
        if why := too_large(Host(), settings.arena.whole_size):
            log.warning("%s", why, extra=event("arena_large"))
        point("daemon.segments")
        try:
            server = Server(settings.socket, settings.access)
        except BaseException:
            _undo(segments)
            raise
        point("daemon.listening")
        asyncio.run(run(settings, segments, server, signals, context))


def _undo(segments: Segments) -> None:
    """Restores the state before the start."""
    if segments.origin is Origin.MADE:
        segments.remove()
    else:
        segments.release()


def _take(settings: Config, leftovers: Leftovers, keep_while: Path | None) -> Segments:
    """Returns the segments. Incompatible ones are discarded if the service was stopped since they were written.

    A stop was meant to release them, so they must not prevent the start.

    Raises:
        UnfitError: The segments are incompatible, and the service is only being restarted.
    """
    try:
        return open_segments(settings, leftovers)
    except UnfitError as error:
        if keep_while is None or keep_while.exists():
            raise UnfitError(f"{error}{_way_to_keep(settings)}") from error
        log.warning("%s: discarded, since the service was stopped", error, extra=event("leftovers_dropped"))
        return open_segments(settings, Leftovers.DISCARD)


def _way_to_keep(settings: Config) -> str:
    from pagetier.daemon.segments_check import way_to_keep  # a start that succeeds does not pay for it

    return way_to_keep(settings)


def open_segments(settings: Config, leftovers: Leftovers = Leftovers.ADOPT) -> Segments:
    """Returns the segments that the configuration asks for. Raises ShmError, also if the host lacks the memory."""

    def check_room() -> None:
        verdict = fit(Host(), need_of(settings))
        if not verdict.fits:
            raise ShmError(verdict.explain())

    def accepts(have: Geometry) -> bool:
        return serves(have, settings)

    return take(SegmentRequest(settings.name, geometry_of(settings), BUILD, leftovers, check_room, accepts))


def give_up(code: Exit, error: object) -> NoReturn:
    """Ends the process, and says why: a sentence on a terminal, in a log a line with event=refused for each mistake."""
    message = f"Error: {error}" if sys.stderr.isatty() else "\n".join(_line(code, each) for each in log_lines(error))
    with suppress(OSError):
        click.echo(message, err=True)
    raise SystemExit(code)


def _line(code: Exit, error: str) -> str:
    record = logging.LogRecord("pagetierd", logging.ERROR, "", 0, "%s", (error,), None)
    vars(record).update(event("refused", code=code.value))
    return formatter().format(record)
