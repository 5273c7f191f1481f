"""`pagetierd`: reads its configuration, takes the segments, serves until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any, NoReturn

import click

from ..shm._core import ShmError
from ..shm.points import point
from ..shm.protocol import BUILD
from ..shm.segments import Leftovers, Origin, Segments, Wish, take
from .config import ConfigError, load
from .exits import Exit, exit_code_help
from .fit import fit
from .flags import ConfigCommand, config_flags, config_options
from .host import Host
from .leave import Told
from .options import Config
from .plan import geometry_of, need_of
from .prefault import PrefaultError
from .run import run
from .server import Server, SocketError
from .version import version_option

log = logging.getLogger("pagetierd")


@click.command(
    cls=ConfigCommand,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exit_code_help(Exit.OK, Exit.USAGE, Exit.REFUSED),
)
@version_option
@click.option("--config", type=click.Path(path_type=Path), help="TOML file. [default: $PAGETIER_CONFIG, or none]")
@click.option(
    "--fresh",
    "leftovers",
    flag_value=Leftovers.DISCARD,
    default=Leftovers.ADOPT,
    type=click.UNPROCESSED,
    help="Drop what an earlier daemon left in memory.",
)
@config_options
def main(config: Path | None, leftovers: Leftovers, **flags: Any) -> None:
    """Keep KV pages in host memory for the engines of this host.

    Every setting can be given in a TOML file, in a variable over it, and by a flag over both: arena.size is `size` in
    the table [arena], PAGETIER_ARENA_SIZE and --arena-size. `pagetier doctor` says whether this host is ready for it.

    SIGTERM and SIGINT stop it and give the memory back; SIGUSR1 stops it and leaves the pages for the next daemon,
    as a crash does.
    """
    try:
        settings = load(config, os.environ, config_flags(flags))
    except ConfigError as error:
        _give_up(Exit.USAGE, error)
    logging.basicConfig(level=settings.log.level.upper(), format="%(levelname)s %(name)s: %(message)s")
    try:
        _serve(settings, leftovers)
    except (ShmError, SocketError, PrefaultError, OSError) as error:
        _give_up(Exit.REFUSED, error)


def _serve(settings: Config, leftovers: Leftovers) -> None:
    with Told() as told:
        segments = open_segments(settings, leftovers)
        point("daemon.segments")
        try:
            server = Server(settings.socket, settings.access)
        except BaseException:
            _undo(segments)
            raise
        point("daemon.listening")
        asyncio.run(run(settings, segments, server, told))


def _undo(segments: Segments) -> None:
    """Leaves things as they were found."""
    if segments.origin is Origin.MADE:
        segments.remove()
    else:
        segments.release()


def open_segments(settings: Config, leftovers: Leftovers = Leftovers.ADOPT) -> Segments:
    """The segments that the configuration asks for. Raises ShmError, also where the host has no room for them."""

    def check_room() -> None:
        verdict = fit(Host(), need_of(settings))
        if not verdict.fits:
            raise ShmError(verdict.explain())

    return take(Wish(settings.name, geometry_of(settings), BUILD, leftovers, check_room))


def _give_up(code: Exit, error: Exception) -> NoReturn:
    click.echo(f"pagetierd: {error}", err=True)
    raise SystemExit(code)
