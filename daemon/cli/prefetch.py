"""`pagetier pages prefetch`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import click
import msgspec

from pagetier.daemon.cli.daemon_connection import Daemon, daemon_at, duration_option, socket_option
from pagetier.daemon.cli.page_arguments import FileCommand, named_pages, no_chain, pages_options
from pagetier.daemon.host.peer_credentials import Rights
from pagetier.shm.clock import Deadline
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import PREFETCH, Fetch, Fetched, FetchOutcome
from pagetier.shm.units import counted

# Pages of a request. The daemon begins their reads in one turn, in about 15 ms, while others wait.
_AT_ONCE: Final = 1 << 12
_ABSENT: Final = "the other pages are in no tier, or behind one that is not"


class PrefetchOutcome(msgspec.Struct, frozen=True):
    """What `--json` prints: all pages, those in memory now, and why not all of them are."""

    pages: int
    in_memory: int
    reason: str = ""


@click.command(cls=FileCommand)
@socket_option
@pages_options
@duration_option("--timeout", "30s", "How long to wait.")
@click.option("--json", "show", flag_value="json", help="Print one JSON object.")
def prefetch(
    *,
    socket: Path,
    namespace: str,
    keys_file: IO[bytes] | None,
    tokens_file: IO[bytes] | None,
    timeout: float,
    show: str | None,
) -> None:
    """Read the pages of a prompt from disk into memory.

    Pages behind the first one that is in no tier are not read. Needs the right to attach. The pages that are read at
    once have at most the share arena.process_share of the arena.

    Exit codes: 0: all pages are in memory; 1: some are not (the message says why), or no such namespace; 2: invalid
    usage; 3: no daemon.
    """
    with daemon_at(socket, Rights.ATTACH) as daemon:
        space, keys = named_pages(daemon.observer, namespace, keys_file, tokens_file)
        parts = list(_read(daemon, keys, timeout))
    in_memory = sum(part.outcomes.count(FetchOutcome.IN_MEMORY) for part in parts)
    reasons = [part.reason for part in parts if part.reason]
    outcome = PrefetchOutcome(PAGE_KEYS.count(keys), in_memory, reasons[0] if reasons else "")
    text = f"{outcome.in_memory:,} of {counted(outcome.pages, 'page')} are in memory"
    click.echo(msgspec.json.encode(outcome) if show else text)
    _expect_all(outcome, no_chain(space) if tokens_file and not in_memory else _ABSENT)


def _expect_all(outcome: PrefetchOutcome, why: str) -> None:
    if outcome.in_memory < outcome.pages:
        raise click.ClickException(outcome.reason or why)


def _read(daemon: Daemon, keys: bytes, timeout: float) -> Iterator[Fetched]:
    """Yields the outcomes of the pages, a part at a time, up to the first part that is not in memory as a whole."""
    if PREFETCH not in daemon.extras:
        raise click.ClickException("this daemon is of an earlier version, which reads nothing ahead: restart it")
    deadline = Deadline(timeout)
    for number, asked in enumerate(PAGE_KEYS.batches(keys, _AT_ONCE), 1):
        part = daemon.ask(Fetch(number, asked, deadline.left), Fetched)
        yield part
        if set(part.outcomes) - {FetchOutcome.IN_MEMORY}:
            return
