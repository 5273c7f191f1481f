"""`pagetier flush --to-disk`: the daemon is asked again and again how far it is, which keeps it at it."""

from __future__ import annotations

import itertools
import logging
import time

import click

from pagetier.daemon.cli.connect import Daemon
from pagetier.daemon.common.progress import Progress, progress_for_people
from pagetier.shm.protocol import Save, Saved
from pagetier.shm.units import format_size

log = logging.getLogger("pagetier")

_PAUSE_S = 0.1
_STALLED_S = 30.0


def save(daemon: Daemon) -> None:
    """Returns when everything is on disk and synced. Raises ClickException where it is not, and says why."""
    first = _ask(daemon, 0)
    if first.trouble and not first.pages and not first.synced:
        raise click.ClickException(first.trouble)
    began = time.monotonic()
    with progress_for_people("to disk", log) as progress:
        _wait(daemon, first, progress)
    seconds = time.monotonic() - began
    written = f"{first.pages:,} pages, {format_size(first.bytes)} written" if first.pages else "everything was there"
    click.echo(f"{written}; synced in {seconds:.1f} s")


def _wait(daemon: Daemon, first: Saved, progress: Progress) -> None:
    """Until all is synced; gives up where nothing moves any more."""
    told, least, moved = first, first.bytes, time.monotonic()
    total = max(1, first.bytes)
    for number in itertools.count(1):
        progress(max(0, total - told.bytes) if told.pages else total, total)
        if told.synced:
            _expect_all(told)
            return
        if told.bytes < least:
            least, moved = told.bytes, time.monotonic()
        if told.trouble or time.monotonic() - moved > _STALLED_S:
            why = told.trouble or "nothing was written for a while: is disk.size smaller than what is in memory?"
            raise click.ClickException(_left(told, why))
        time.sleep(_PAUSE_S)
        told = _ask(daemon, number)


def _left(told: Saved, why: str) -> str:
    return f"{told.pages:,} pages, {format_size(told.bytes)} are not on disk: {why}" if told.pages else why


def _expect_all(told: Saved) -> None:
    if told.trouble:
        raise click.ClickException(f"synced, but not all is on disk: {told.trouble}")


def _ask(daemon: Daemon, number: int) -> Saved:
    return daemon.ask(Save(number), Saved)
