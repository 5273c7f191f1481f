"""`pagetierd`: reads its configuration, takes the segments, serves until it is told to stop."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
from enum import Enum
from pathlib import Path
from typing import Any

import click

from pagetier.daemon.common.exit_codes import Exit, exit_code_help
from pagetier.daemon.common.systemd_notify import Notifier
from pagetier.daemon.common.version_option import version_option
from pagetier.daemon.config.cli_options import SomePath, config_flags, config_options
from pagetier.daemon.config.load import Beside, ConfigError, load
from pagetier.daemon.config.schema import Config
from pagetier.daemon.host.capacity import fit, geometry_of, need_of, serves
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.prefault import PrefaultError
from pagetier.daemon.lifecycle import RunContext, run
from pagetier.daemon.release_memory import give_back_memory, name_meant
from pagetier.daemon.server.control_socket import Server, SocketError
from pagetier.daemon.startup_errors import Refusing, give_up
from pagetier.daemon.stop_signals import Told
from pagetier.shm._core import ShmError
from pagetier.shm.failpoints import point
from pagetier.shm.geometry import Geometry
from pagetier.shm.log_format import event, log_to_stderr
from pagetier.shm.protocol import BUILD
from pagetier.shm.segments import Leftovers, Origin, Segments, UnfitError, Wish, take

log = logging.getLogger("pagetierd")


class Instead(Enum):
    """What is done in place of serving."""

    CHECK = "check"
    GIVE_BACK = "give back"


@click.command(
    cls=Refusing,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exit_code_help(Exit.OK, Exit.USAGE, Exit.REFUSED, Exit.UNFIT),
)
@version_option
@click.option("--config", type=SomePath(readable=False), help="TOML file. [default: $PAGETIER_CONFIG, or none]")
@click.option(
    "--fresh",
    "leftovers",
    flag_value=Leftovers.DISCARD,
    default=Leftovers.ADOPT,
    type=click.UNPROCESSED,
    help="Drop what an earlier daemon left in memory.",
)
@click.option(
    "--keep-while",
    type=SomePath(),
    help="While this file or folder is there, SIGTERM leaves the pages for the next daemon.",
)
@click.option(
    "--check", "instead", flag_value=Instead.CHECK, type=click.UNPROCESSED, help="Read the configuration only."
)
@click.option(
    "--give-back",
    "instead",
    flag_value=Instead.GIVE_BACK,
    type=click.UNPROCESSED,
    help="Give back the memory that an earlier daemon left, and exit; root may do so for every user.",
)
@config_options
def main(
    config: Path | None, leftovers: Leftovers, keep_while: Path | None, instead: Instead | None, **flags: Any
) -> None:
    """Keep KV pages in host memory for the engines of this host.

    Every setting can be given in a TOML file, in a variable over it, and by a flag over both: arena.size is `size` in
    the table [arena], PAGETIER_ARENA_SIZE and --arena-size. `pagetier doctor` says whether this host is ready for it.

    SIGTERM and SIGINT stop it and give the memory back; SIGUSR1 stops it and leaves the pages for the next daemon,
    as a crash does. SIGHUP reads the configuration again; sizes of memory, names and paths wait for a restart.
    """

    def read(beside: Beside | None = None) -> Config:
        return load(config, os.environ, config_flags(flags), beside)

    try:
        if instead is Instead.GIVE_BACK:
            log_to_stderr("info")
            give_back_memory(name_meant(config, os.environ, config_flags(flags)))
            return
        settings = read()
        if instead is not Instead.CHECK:
            log_to_stderr(settings.log.level)
            _serve(settings, leftovers, RunContext(Notifier(os.environ), read, keep_while))
    except ConfigError as error:
        give_up(Exit.USAGE, error)
    except UnfitError as error:
        give_up(Exit.UNFIT, f"{error}; {_remedy(keep_while)}")
    except (ShmError, SocketError, PrefaultError, OSError) as error:
        give_up(Exit.REFUSED, error)


def _remedy(keep_while: Path | None) -> str:
    if keep_while is None:
        return "--fresh drops what is in them"
    return "`systemctl stop` and then `systemctl start` drop what is in them, a restart does not"


def _serve(settings: Config, leftovers: Leftovers, keeper: RunContext) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nothing to reload yet, and nothing to die of
    if keeper.notifier.watchdog is not None:
        faulthandler.enable()  # its SIGABRT has this process say where it hung
    with Told() as told:
        segments = _take(settings, leftovers, keeper.keep_while)
        point("daemon.segments")
        try:
            server = Server(settings.socket, settings.access)
        except BaseException:
            _undo(segments)
            raise
        point("daemon.listening")
        asyncio.run(run(settings, segments, server, told, keeper))


def _undo(segments: Segments) -> None:
    """Leaves things as they were found."""
    if segments.origin is Origin.MADE:
        segments.remove()
    else:
        segments.release()


def _take(settings: Config, leftovers: Leftovers, keep_while: Path | None) -> Segments:
    """What can not be used stands in nobody's way once the service was stopped: that was to give it back."""
    try:
        return open_segments(settings, leftovers)
    except UnfitError as error:
        if keep_while is None or keep_while.exists():
            raise
        log.warning("%s: dropped, as the service was stopped since", error, extra=event("leftovers_dropped"))
        return open_segments(settings, Leftovers.DISCARD)


def open_segments(settings: Config, leftovers: Leftovers = Leftovers.ADOPT) -> Segments:
    """The segments that the configuration asks for. Raises ShmError, also where the host has no room for them."""

    def check_room() -> None:
        verdict = fit(Host(), need_of(settings))
        if not verdict.fits:
            raise ShmError(verdict.explain())

    def will_do(have: Geometry) -> bool:
        return serves(have, settings)

    return take(Wish(settings.name, geometry_of(settings), BUILD, leftovers, check_room, will_do))
