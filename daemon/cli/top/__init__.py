"""`pagetier top`."""

from __future__ import annotations

import math
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pagetier.daemon.cli.connect import Daemon, Unreachable, daemon_at, socket_option
from pagetier.daemon.cli.snapshot import take_snapshot
from pagetier.daemon.cli.top.history import History, Moment
from pagetier.daemon.common.exit_codes import Exit

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from pagetier.daemon.cli.top.screen import KeyReader


class _Seconds(click.FloatRange):
    """A number between two: NaN compares with none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does, and no NaN."""
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


@click.command()
@socket_option
@click.option("--interval", type=_Seconds(0.1, 60), default=1.0, show_default=True, help="Seconds between looks.")
@click.option("--once", is_flag=True, help="Show it once and end, as where there is no terminal, or a dumb one.")
def top(socket: Path, interval: float, once: bool) -> None:  # noqa: FBT001  click calls it so
    """Watch the cache: tiers, what is found, rates, engines, and what leaves.

    "found" is the share of prompts' tokens that lie in memory or on disk; of an engine, "in mem" is the share of pages
    that it found in memory, where they can be loaded from at once. Only looks. q or Ctrl-C ends it. Exit codes: 0; 3
    no daemon at the start.
    """
    from pagetier.daemon.cli.render import console_for_people

    console = console_for_people()
    if once or not console.is_terminal or console.is_dumb_terminal:
        _show_once(console, socket, interval)
    else:
        _watch(console, socket, interval)


def _show_once(console: Console, socket: Path, interval: float) -> None:
    """Rates need two looks."""
    history = History()
    with daemon_at(socket) as daemon:
        _look(daemon, history)
        time.sleep(interval)
        _look(daemon, history)
    console.print(_drawn(history, console, socket), width=80, soft_wrap=True)


def _watch(console: Console, socket: Path, interval: float) -> None:
    from rich.live import Live

    from pagetier.daemon.cli.top.screen import KeyReader

    with daemon_at(socket):
        pass  # that there is none is told before the screen is taken
    signal.signal(signal.SIGTERM, _leave)
    try:
        with KeyReader() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
            _Watch(live, keys, socket, interval).go_on()
    except KeyboardInterrupt:
        pass


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(Exit.OK)  # the terminal is tidied up on the way


class _Watch:
    def __init__(self, live: Live, keys: KeyReader, socket: Path, interval: float) -> None:
        self._live = live
        self._keys = keys
        self._socket = socket
        self._interval = interval
        self._history = History()

    def go_on(self) -> None:
        """Until somebody ends it; over the ends of daemons."""
        while not self._watch_one():
            pass

    def _watch_one(self) -> bool:
        """One daemon to its end, or the want of one; whether somebody ended it."""
        try:
            with daemon_at(self._socket) as daemon:
                while daemon.is_there():
                    _look(daemon, self._history)
                    self._show(_drawn(self._history, self._live.console, self._socket))
                    if self._keys.end_within(self._interval):
                        return True
        except Unreachable as error:
            self._show(_missing(self._live.console, self._socket, error.message))
            return self._keys.end_within(self._interval)
        return False

    def _show(self, what: RenderableType) -> None:
        self._live.update(what, refresh=True)


def _look(daemon: Daemon, history: History) -> None:
    history.add(Moment(time.monotonic(), take_snapshot(daemon.observer)))


def _drawn(history: History, console: Console, socket: Path) -> RenderableType:
    from pagetier.daemon.cli.top.screen import ScreenContext, charset_for, screen

    return screen(history, ScreenContext(socket, console.height, charset_for(console.encoding)))


def _missing(console: Console, socket: Path, why: str) -> RenderableType:
    from pagetier.daemon.cli.top.screen import ScreenContext, charset_for, gone

    return gone(ScreenContext(socket, console.height, charset_for(console.encoding)), why)
