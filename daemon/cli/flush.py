"""`pagetier flush`."""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from pagetier.daemon.cli.connect import Daemon, daemon_at, socket_option
from pagetier.daemon.cli.snapshot import NamespaceStats, take_snapshot
from pagetier.daemon.common.namespaces import means
from pagetier.daemon.common.progress import Progress, progress_for_people
from pagetier.shm.protocol import Flush, Flushed, Save, Saved
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


class FlushArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The command line. tier: None for both."""

    socket: Path
    namespace: str | None
    everything: bool
    tier: str | None
    to_disk: bool
    sure: bool


class FlushOutcome(msgspec.Struct, frozen=True):
    """Pages that went, and pages that are in use and stayed. trouble: why more may be on disk still, or ""."""

    dropped: int
    kept: int
    trouble: str


@click.command()
@socket_option
@click.option(
    "--namespace",
    metavar="TEXT",
    help="The namespaces with this label, model, or digest (8 or more of its digits), as `pagetier stats` shows them.",
)
@click.option("--all", "everything", is_flag=True, help="Every namespace.")
@click.option("--tier", type=click.Choice(["memory", "disk"]), help="Out of this tier alone. [default: out of both]")
@click.option("--to-disk", is_flag=True, help="Drop nothing: write to disk what is not there yet, and wait for it.")
@click.option("--yes", "sure", is_flag=True, help="Do not ask.")
def flush(**options: Any) -> None:
    """Drop pages, or write all to disk; pages in use are kept and counted.

    Asks before it drops anything. Exit codes: 0; 1 no such namespace, not confirmed, not all could be written, or not
    all has left the disk yet, which is said; 2 used wrongly; 3 no daemon.
    """
    wanted = FlushArguments(**options)
    _check(wanted)
    with daemon_at(wanted.socket) as daemon:
        if wanted.to_disk:
            save(daemon)
            return
        chosen = _choose(take_snapshot(daemon.observer).namespaces, wanted.namespace)
        _show_choice(chosen, wanted)
        if not wanted.sure:
            _confirm()
        _show_outcome(_flush(daemon, chosen, wanted))


def _check(wanted: FlushArguments) -> None:
    if wanted.to_disk:
        if wanted.namespace is not None or wanted.everything or wanted.tier:
            raise click.UsageError("--to-disk writes everything and drops nothing: say it alone")
    elif (wanted.namespace is None) is not wanted.everything:
        raise click.UsageError("say either --namespace or --all")


def _choose(known: Sequence[NamespaceStats], wanted: str | None) -> list[NamespaceStats]:
    chosen = [space for space in known if means(wanted, space.label, bytes.fromhex(space.digest))]
    if not chosen and wanted is not None:
        _not_found(known, wanted)
    return chosen


def _not_found(known: Sequence[NamespaceStats], wanted: str) -> NoReturn:
    labels = "\n".join(f"  {space.label}" for space in known)
    there = f"there are:\n{labels}" if known else "there is none yet"
    raise click.ClickException(f'no namespace has the label, model or digest "{wanted}"; {there}')


def _show_choice(chosen: Sequence[NamespaceStats], wanted: FlushArguments) -> None:
    if wanted.namespace is None:
        click.echo(f"all namespaces: {_held(chosen, wanted.tier)}")
        return
    for space in chosen:
        click.echo(f"{space.label}: {_held([space], wanted.tier)}")


def _held(spaces: Sequence[NamespaceStats], tier: str | None) -> str:
    """What these namespaces have in the tiers that are meant."""
    pages, nbytes = sum(space.pages for space in spaces), sum(space.bytes for space in spaces)
    on_disk, disk_bytes = sum(space.disk_pages for space in spaces), sum(space.disk_bytes for space in spaces)
    memory = f"{_pages(pages)}, {format_size(nbytes)}"
    disk = f"{_pages(on_disk)} on disk, {format_size(disk_bytes)}"
    if tier == "disk":
        return disk
    return memory if tier == "memory" or not on_disk else f"{memory}; {disk}"


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: say --yes to drop these pages")
    click.confirm("Drop them?", abort=True)


def _flush(daemon: Daemon, chosen: Sequence[NamespaceStats], wanted: FlushArguments) -> FlushOutcome:
    """By digest, so that just what was shown goes; everything by one request, with what came meanwhile."""
    texts = [None] if wanted.namespace is None else [space.digest for space in chosen]
    answers = [daemon.ask(Flush(number, text, wanted.tier), Flushed) for number, text in enumerate(texts)]
    trouble = next((answer.trouble for answer in answers if answer.trouble), "")
    return FlushOutcome(sum(answer.dropped for answer in answers), sum(answer.kept for answer in answers), trouble)


def _show_outcome(outcome: FlushOutcome) -> None:
    kept = f"; {_pages(outcome.kept)} in use and kept" if outcome.kept else ""
    click.echo(f"{_pages(outcome.dropped)} dropped{kept}")
    if outcome.trouble:
        raise click.ClickException(outcome.trouble)


def _pages(number: int) -> str:
    return "1 page" if number == 1 else f"{number:,} pages"
