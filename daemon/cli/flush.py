"""`pagetier flush`."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from pagetier.daemon.cli.confirmation import confirm
from pagetier.daemon.cli.daemon_connection import Daemon, daemon_at, socket_option
from pagetier.daemon.cli.page_arguments import FileCommand, chosen_spaces, keys_file_option, keys_in
from pagetier.daemon.common.progress import Progress, progress_for_people
from pagetier.daemon.host.peer_credentials import Rights
from pagetier.shm import clock
from pagetier.shm._core import NamespaceRecord
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import FORGET, FORGET_KEYS, Flush, Flushed, Forget, Save, Saved
from pagetier.shm.units import counted, format_size

log = logging.getLogger("pagetier")

_PAUSE_S = 0.1
_STALLED_S = 30.0
_STALLED = f"nothing was written for {_STALLED_S:.0f} seconds: is disk.size smaller than what is in memory?"


def save(daemon: Daemon) -> None:
    """Returns when all pages are on disk and synced.

    Raises:
        click.ClickException: Not all pages can be written; the message says why.
    """
    first = _ask(daemon, 0)
    if first.trouble and not first.pages and not first.synced:
        raise click.ClickException(first.trouble)
    began = clock.now()
    with progress_for_people("to disk", log) as progress:
        _wait(daemon, first, progress)
    seconds = clock.now() - began
    written = (
        f"{counted(first.pages, 'page')}, {format_size(first.bytes)} written"
        if first.pages
        else "everything was on disk already"
    )
    click.echo(f"{written}; synced in {seconds:.1f} s")


def _wait(daemon: Daemon, first: Saved, progress: Progress) -> None:
    """Waits until everything is synced.

    Raises:
        click.ClickException: Writing fails or makes no progress.
    """
    response, least, moved = first, first.bytes, clock.now()
    total = max(1, first.bytes)
    for number in itertools.count(1):
        progress(max(0, total - response.bytes) if response.pages else total, total)
        if response.synced:
            _expect_all(response)
            return
        if response.bytes < least:
            least, moved = response.bytes, clock.now()
        if response.trouble or clock.now() - moved > _STALLED_S:
            why = response.trouble or _STALLED
            raise click.ClickException(_left(response, why))
        clock.sleep(_PAUSE_S)
        response = _ask(daemon, number)


def _left(response: Saved, why: str) -> str:
    if not response.pages:
        return why
    return f"{counted(response.pages, 'page')}, {format_size(response.bytes)} not on disk: {why}"


def _expect_all(response: Saved) -> None:
    if response.trouble:
        raise click.ClickException(f"synced, but not all pages are on disk: {response.trouble}")


def _ask(daemon: Daemon, number: int) -> Saved:
    return daemon.ask(Save(number), Saved)


class FlushArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The command line. tier: None for both."""

    socket: Path
    namespace: str | None
    everything: bool
    file: IO[bytes] | None
    tier: str | None
    to_disk: bool
    sure: bool
    dry: bool


class FlushOutcome(msgspec.Struct, frozen=True):
    """Pages that were dropped, and pages in use that were kept. trouble: why pages may remain on disk, or ""."""

    dropped: int
    kept: int
    trouble: str


@click.command(cls=FileCommand)
@socket_option
@click.option(
    "--namespace",
    metavar="TEXT",
    help="The namespaces with this label, model, or digest (at least 8 digits), as `pagetier stats` shows them.",
)
@click.option("--all", "everything", is_flag=True, help="All namespaces.")
@keys_file_option("They leave both tiers.")
@click.option(
    "--tier", type=click.Choice(["memory", "disk"]), help="Drop pages from this tier only. [default: from both]"
)
@click.option(
    "--to-disk",
    is_flag=True,
    help="Drop nothing: write all pages that are not on disk yet, and wait until they are synced.",
)
@click.option("--yes", "sure", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", "dry", is_flag=True, help="Show what would be dropped, and drop nothing.")
def flush(**options: Any) -> None:
    """Drop pages, or write all pages to disk.

    Pages in use are kept and counted. Asks for confirmation before it drops anything.

    Pages that are named by their keys are overwritten in memory. On disk they are discarded: no match and no daemon
    finds them, but their bytes stay in the files until the space is used again.

    Exit codes: 0: done; 1: no such namespace, declined, not all pages written, pages named by their keys in use, or not
    all pages removed from disk yet (the message says which); 2: invalid usage, or no terminal to ask on without --yes;
    3: no daemon.
    """
    wanted = FlushArguments(**options)
    _check(wanted)
    keys = b"" if wanted.file is None else keys_in(wanted.file)
    with daemon_at(wanted.socket, Rights.ATTACH) as daemon:
        if wanted.to_disk:
            save(daemon)
            return
        if wanted.file is not None:
            _forget_pages(daemon, keys, wanted)
            return
        chosen = chosen_spaces(daemon.observer, wanted.namespace)
        _show_choice(chosen, wanted)
        if wanted.dry:
            return
        if not wanted.sure:
            confirm("Drop them?", "to drop these pages")
        _show_outcome(_flush(daemon, chosen, wanted))


def _check(wanted: FlushArguments) -> None:
    if wanted.to_disk:
        if _named(wanted) or wanted.tier or wanted.dry:
            raise click.UsageError(
                "--to-disk writes everything and drops nothing: it excludes --namespace, --all, --keys-file, --tier and"
                " --dry-run"
            )
    elif _named(wanted) != 1:
        raise click.UsageError("drop what? Give one of --namespace, --all and --keys-file; --to-disk drops none")
    elif wanted.file is not None and wanted.tier:
        raise click.UsageError("--keys-file drops pages from both tiers: it excludes --tier")


def _named(wanted: FlushArguments) -> int:
    """Returns in how many ways the command line names pages."""
    return (wanted.namespace is not None) + wanted.everything + (wanted.file is not None)


def _forget_pages(daemon: Daemon, keys: bytes, wanted: FlushArguments) -> None:
    if FORGET not in daemon.extras:
        raise click.ClickException("this daemon is of an earlier version, which forgets no single pages: restart it")
    pages = PAGE_KEYS.count(keys)
    click.echo(f"would drop {counted(pages, 'page')}" if wanted.dry else f"{counted(pages, 'page')} named")
    if wanted.dry:
        return
    if not wanted.sure:
        confirm("Forget them?", "to forget these pages")
    parts = PAGE_KEYS.batches(keys, FORGET_KEYS)
    answers = [daemon.ask(Forget(number, part), Flushed) for number, part in enumerate(parts, 1)]
    _show_forgotten(pages, _sum(answers))


def _show_forgotten(pages: int, outcome: FlushOutcome) -> None:
    absent = pages - outcome.dropped - outcome.kept
    click.echo(
        f"{counted(outcome.dropped, 'page')} forgotten: overwritten in memory, discarded on disk"
        f" (the bytes stay in its files until the space is used again); {absent:,} in no tier"
    )
    if outcome.trouble:
        raise click.ClickException(outcome.trouble)
    if outcome.kept:
        raise click.ClickException(f"{counted(outcome.kept, 'page')} in use and kept: try again later")


def _show_choice(chosen: Sequence[NamespaceRecord], wanted: FlushArguments) -> None:
    would = "would drop from " if wanted.dry else ""
    if wanted.namespace is None:
        click.echo(f"{would}all namespaces: {_contents(chosen, wanted.tier)}")
        return
    for space in chosen:
        click.echo(f"{would}{space.name}: {_contents([space], wanted.tier)}")


def _contents(spaces: Sequence[NamespaceRecord], tier: str | None) -> str:
    """Returns the pages and bytes of these namespaces in the tiers to flush."""
    pages, nbytes = sum(space.pages for space in spaces), sum(space.bytes for space in spaces)
    on_disk, disk_bytes = sum(space.disk_pages for space in spaces), sum(space.disk_bytes for space in spaces)
    memory = f"{counted(pages, 'page')}, {format_size(nbytes)}"
    disk = f"{counted(on_disk, 'page')} on disk, {format_size(disk_bytes)}"
    if tier == "disk":
        return disk
    return memory if tier == "memory" or not on_disk else f"{memory}; {disk}"


def _flush(daemon: Daemon, chosen: Sequence[NamespaceRecord], wanted: FlushArguments) -> FlushOutcome:
    """Drops pages by digest, so that only what was shown is dropped; --all is one request and includes newer pages."""
    texts = [None] if wanted.namespace is None else [space.digest.hex() for space in chosen]
    answers = [daemon.ask(Flush(number, text, wanted.tier), Flushed) for number, text in enumerate(texts)]
    return _sum(answers)


def _sum(answers: Sequence[Flushed]) -> FlushOutcome:
    trouble = next((answer.trouble for answer in answers if answer.trouble), "")
    return FlushOutcome(sum(answer.dropped for answer in answers), sum(answer.kept for answer in answers), trouble)


def _show_outcome(outcome: FlushOutcome) -> None:
    kept = f"; {counted(outcome.kept, 'page')} in use and kept" if outcome.kept else ""
    click.echo(f"{counted(outcome.dropped, 'page')} dropped{kept}")
    if outcome.trouble:
        raise click.ClickException(outcome.trouble)
