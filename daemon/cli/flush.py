"""`pagetier flush`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from ...shm.protocol import Flush, Flushed
from ..labels import means
from ..sizes import format_size
from ..stats import NamespaceStats, take_snapshot
from .reach import Daemon, daemon_at, socket_option


class Outcome(msgspec.Struct, frozen=True):
    """Pages that went, and pages that are in use and stayed."""

    dropped: int
    kept: int


@click.command()
@socket_option
@click.option(
    "--namespace",
    metavar="TEXT",
    help="The namespaces with this label, model, or digest (8 or more of its digits), as `pagetier stats` shows them.",
)
@click.option("--all", "everything", is_flag=True, help="Every namespace.")
@click.option("--yes", "sure", is_flag=True, help="Do not ask.")
def flush(socket: Path, namespace: str | None, everything: bool, sure: bool) -> None:  # noqa: FBT001  click's flags
    """Drop pages; those in use are kept and counted.

    Asks first on a terminal. Exit codes: 0; 1 no such namespace, or not confirmed; 2 used wrongly; 3 no daemon.
    """
    if (namespace is None) is not everything:
        raise click.UsageError("say either --namespace or --all")
    with daemon_at(socket) as daemon:
        chosen = _choose(take_snapshot(daemon.observer).namespaces, namespace)
        _show_choice(chosen, namespace)
        if not sure:
            _confirm()
        _show_outcome(_flush(daemon, chosen, namespace))


def _choose(known: Sequence[NamespaceStats], wanted: str | None) -> list[NamespaceStats]:
    chosen = [space for space in known if means(wanted, space.label, bytes.fromhex(space.digest))]
    if not chosen and wanted is not None:
        _not_found(known, wanted)
    return chosen


def _not_found(known: Sequence[NamespaceStats], wanted: str) -> NoReturn:
    labels = "\n".join(f"  {space.label}" for space in known)
    there = f"there are:\n{labels}" if known else "there is none yet"
    raise click.ClickException(f'no namespace has the label, model or digest "{wanted}"; {there}')


def _show_choice(chosen: Sequence[NamespaceStats], wanted: str | None) -> None:
    if wanted is None:
        pages, nbytes = sum(space.pages for space in chosen), sum(space.bytes for space in chosen)
        click.echo(f"all namespaces: {_pages(pages)}, {format_size(nbytes)}")
        return
    for space in chosen:
        click.echo(f"{space.label}: {_pages(space.pages)}, {format_size(space.bytes)}")


def _confirm() -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: say --yes to drop these pages")
    click.confirm("Drop them?", abort=True)


def _flush(daemon: Daemon, chosen: Sequence[NamespaceStats], wanted: str | None) -> Outcome:
    """By digest, so that just what was shown goes; everything by one request, with what came meanwhile."""
    texts = [None] if wanted is None else [space.digest for space in chosen]
    answers = [daemon.ask(Flush(number, text), Flushed) for number, text in enumerate(texts)]
    return Outcome(sum(answer.dropped for answer in answers), sum(answer.kept for answer in answers))


def _show_outcome(outcome: Outcome) -> None:
    kept = f"; {_pages(outcome.kept)} in use and kept" if outcome.kept else ""
    click.echo(f"{_pages(outcome.dropped)} dropped{kept}")


def _pages(number: int) -> str:
    return "1 page" if number == 1 else f"{number:,} pages"
