"""`pagetier top`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from pagetier.daemon.cli.config import config_of
from pagetier.daemon.cli.daemon_connection import Daemon, Refused, Unreachable, daemon_at, socket_option
from pagetier.daemon.cli.number_types import Number
from pagetier.daemon.cli.top.history import History, Moment
from pagetier.daemon.config.loader import ConfigError
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.shm import clock
from pagetier.shm.exit_codes import Exit

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from pagetier.daemon.cli.top.key_reader import KeyReader


@click.command()
@socket_option
@click.option(
    "--interval",
    metavar="SECONDS",
    type=Number(0.1, 60),
    default=1.0,
    show_default=True,
    help="Time between updates.",
)
@click.option("--once", is_flag=True, help="Show it once and exit; the default without a terminal, or on a dumb one.")
def top(socket: Path, interval: float, once: bool) -> None:  # noqa: FBT001  click calls it so
    """Watch the cache: tiers, hit rates, throughput, engines and evictions.

    "found" is the share of the tokens that engines lacked and got from memory, disk or fleet. An engine's "in mem" is
    the share of its pages that it found in memory, where they can be loaded at once. Changes nothing. q or Ctrl-C
    quits.

    Exit codes: 0: success; 3: no daemon at the start.
    """
    from pagetier.daemon.cli.tables import console_for_people

    console = console_for_people()
    if once or not console.is_terminal or console.is_dumb_terminal:
        _show_once(console, socket, interval)
    else:
        _watch(console, socket, interval)


def _show_once(console: Console, socket: Path, interval: float) -> None:
    """Prints one screen. Rates need two snapshots."""
    history = History()
    with daemon_at(socket) as daemon:
        page = _page_of(daemon)
        _add_snapshot(daemon, history)
        clock.sleep(interval)
        _add_snapshot(daemon, history)
    console.print(_draw(history, console, socket, page), width=max(60, console.width), soft_wrap=True)


def _watch(console: Console, socket: Path, interval: float) -> None:
    from rich.live import Live

    from pagetier.daemon.cli.top.key_reader import KeyReader

    with daemon_at(socket):
        pass  # reports a missing daemon before the screen is taken over
    signal.signal(signal.SIGTERM, _leave)
    try:
        with KeyReader() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
            _Watch(live, keys, socket, interval).watch()
    except KeyboardInterrupt:
        pass


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(Exit.OK)  # restores the terminal on the way


class _Watch:
    def __init__(self, live: Live, keys: KeyReader, socket: Path, interval: float) -> None:
        self._live = live
        self._keys = keys
        self._socket = socket
        self._interval = interval
        self._history = History()

    def watch(self) -> None:
        """Watches until the user quits, across restarts of the daemon."""
        while not self._watch_one():
            pass

    def _watch_one(self) -> bool:
        """Watches one daemon until it ends, or shows that there is none. Returns whether the user quit."""
        try:
            with daemon_at(self._socket) as daemon:
                page = _page_of(daemon)
                while daemon.is_there():
                    _add_snapshot(daemon, self._history)
                    self._show(_draw(self._history, self._live.console, self._socket, page))
                    if self._keys.quits_within(self._interval):
                        return True
        except Unreachable as error:
            self._show(_missing(self._live.console, self._socket, error.message))
            return self._keys.quits_within(self._interval)
        return False

    def _show(self, what: RenderableType) -> None:
        self._live.update(what, refresh=True)


def _add_snapshot(daemon: Daemon, history: History) -> None:
    history.add(Moment(clock.now(), take_snapshot(daemon.observer)))


def _page_of(daemon: Daemon) -> str:
    """Returns where the daemon serves its page, a port rather than a socket; "" if it serves none or does not say."""
    try:
        listen = config_of(daemon).http.listen
    except (Refused, ConfigError):
        return ""
    ports = [f"http://{address}/" for address in listen if address.path is None]
    return next(iter([*ports, *map(str, listen)]), "")


def _draw(history: History, console: Console, socket: Path, page: str) -> RenderableType:
    from pagetier.daemon.cli.top.screen import ScreenContext, charset_for, screen

    place = ScreenContext(socket, console.height, charset_for(console.encoding), console.width, page)
    return screen(history, place)


def _missing(console: Console, socket: Path, why: str) -> RenderableType:
    from pagetier.daemon.cli.top.screen import ScreenContext, charset_for, gone

    return gone(ScreenContext(socket, console.height, charset_for(console.encoding), console.width), why)
