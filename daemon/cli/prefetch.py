"""`pagetier pages prefetch`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click
import msgspec

from pagetier.daemon.cli.daemon_connection import Daemon, daemon_at, duration_option, socket_option
from pagetier.daemon.cli.page_arguments import (
    FileCommand,
    chosen_spaces,
    named_pages,
    pages_options,
)
from pagetier.daemon.cli.tier_text import why_unlisted
from pagetier.daemon.host.peer_credentials import Rights
from pagetier.daemon.stats.namespace_reads import ABSENT, AT_ONCE, NO_ROOM, NamespaceReads
from pagetier.daemon.stats.page_lookup import in_memory, no_chain, pages_to_read
from pagetier.daemon.stats.snapshot_reader import read_status
from pagetier.shm.clock import Deadline
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import PREFETCH, Fetch, Fetched, FetchOutcome
from pagetier.shm.units import counted


class PrefetchOutcome(msgspec.Struct, frozen=True):
    """What `--json` prints: all pages, those in memory now, why not all of them are, and those that were read now."""

    pages: int
    in_memory: int
    reason: str = ""
    read: int = 0


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
    """Read the pages of a prompt or a namespace from disk into memory.

    With a file, pages behind the first one that is in no tier are not read. Without one, the pages of the namespace, or
    of all namespaces of the model, are read, the last used first: as many as fit into nine tenths of the arena beside
    what is in use or pinned. Needs the right to attach. The pages that are read at once have at most the share
    arena.process_share of the arena.

    Exit codes: 0: all pages are in memory; 1: some are not (the message says why), or no such namespace; 2: invalid
    usage; 3: no daemon.
    """
    with daemon_at(socket, Rights.ATTACH) as daemon:
        _require_prefetch(daemon)
        if keys_file is None and tokens_file is None:
            outcome = _read_namespaces(daemon, namespace, timeout)
        else:
            space, keys = named_pages(daemon.observer, namespace, keys_file, tokens_file)
            outcome = _read_prompt(daemon, keys, timeout, ABSENT if tokens_file is None else no_chain(space))
    text = f"{counted(outcome.read, 'page')} read: {outcome.in_memory:,} of {counted(outcome.pages, 'page')} in memory"
    click.echo(msgspec.json.encode(outcome) if show else text)
    _end(outcome)


def _require_prefetch(daemon: Daemon) -> None:
    if PREFETCH not in daemon.extras:
        raise click.ClickException("this daemon is of an earlier version, which reads nothing ahead: restart it")


def _end(outcome: PrefetchOutcome) -> None:
    """Fails if some pages are not in memory."""
    if outcome.reason:
        raise click.ClickException(outcome.reason)


def _read_prompt(daemon: Daemon, keys: bytes, timeout: float, none: str) -> PrefetchOutcome:
    """Reads the pages of a prompt. none: Why there may be none."""
    before = in_memory(daemon.observer.locate(keys))
    parts = list(_parts(daemon, keys, timeout))
    outcomes, pages = b"".join(part.outcomes for part in parts), PAGE_KEYS.count(keys)
    there = outcomes.count(FetchOutcome.IN_MEMORY)
    why = NO_ROOM if FetchOutcome.NO_ROOM in outcomes else ABSENT if there else none
    reason = next((part.reason for part in parts if part.reason), why) if there < pages else ""
    return PrefetchOutcome(pages, there, reason, max(0, there - before))


def _parts(daemon: Daemon, keys: bytes, timeout: float) -> Iterator[Fetched]:
    """Yields the outcomes of the pages, a part at a time, up to the first part that is not in memory as a whole."""
    deadline = Deadline(timeout)
    for number, asked in enumerate(PAGE_KEYS.batches(keys, AT_ONCE), 1):
        part = _read(daemon, number, asked, deadline.left)
        yield part
        if set(part.outcomes) - {FetchOutcome.IN_MEMORY}:
            return


def _read(daemon: Daemon, number: int, keys: bytes, seconds: float) -> Fetched:
    return daemon.ask(Fetch(number, keys, seconds), Fetched, seconds)


def _read_namespaces(daemon: Daemon, namespace: str, timeout: float) -> PrefetchOutcome:
    spaces = chosen_spaces(daemon.observer, namespace)
    found = asyncio.run(pages_to_read(daemon.observer, read_status(daemon.observer), spaces))
    reads, deadline = NamespaceReads(daemon.observer, found), Deadline(timeout)
    while keys := reads.next_keys():
        reads.take(_read(daemon, 1, keys, deadline.left))
    reason = reads.reason(why_unlisted(daemon.observer, daemon.extras))
    return PrefetchOutcome(found.pages, found.in_memory + reads.read, reason, reads.read)
