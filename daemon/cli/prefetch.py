"""`pagetier pages prefetch`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

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
from pagetier.daemon.stats.page_lookup import LEFT_OUT, in_memory, no_chain, pages_to_read
from pagetier.daemon.stats.snapshot_reader import read_status
from pagetier.shm.clock import Deadline
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import PREFETCH, Fetch, Fetched, FetchOutcome
from pagetier.shm.units import counted

# Pages of a request. The daemon begins their reads in one turn, in about 15 ms, while others wait.
_AT_ONCE: Final = 1 << 12
_ABSENT: Final = "the other pages are in no tier, or behind one that is not"
_NO_ROOM: Final = "memory has no room for the other pages: what is in it is in use, pinned or protected by a quota"
_GONE: Final = "the other pages have left the disk, or could not be read"


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
            outcome = _read_prompt(daemon, keys, timeout, _ABSENT if tokens_file is None else no_chain(space))
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
    why = _NO_ROOM if FetchOutcome.NO_ROOM in outcomes else _ABSENT if there else none
    reason = next((part.reason for part in parts if part.reason), why) if there < pages else ""
    return PrefetchOutcome(pages, there, reason, max(0, there - before))


def _parts(daemon: Daemon, keys: bytes, timeout: float) -> Iterator[Fetched]:
    """Yields the outcomes of the pages, a part at a time, up to the first part that is not in memory as a whole."""
    deadline = Deadline(timeout)
    for number, asked in enumerate(PAGE_KEYS.batches(keys, _AT_ONCE), 1):
        part = daemon.ask(Fetch(number, asked, deadline.left), Fetched)
        yield part
        if set(part.outcomes) - {FetchOutcome.IN_MEMORY}:
            return


def _read_namespaces(daemon: Daemon, namespace: str, timeout: float) -> PrefetchOutcome:
    spaces, status = chosen_spaces(daemon.observer, namespace), read_status(daemon.observer)
    found = asyncio.run(pages_to_read(daemon.observer, status, spaces))
    read, why = _read_each(daemon, found.keys, Deadline(timeout))
    missing = found.pages - found.in_memory - read
    left_out = LEFT_OUT if found.left_out else _GONE
    unlisted = why_unlisted(status.disk, daemon.extras)
    reason = f"{counted(missing, 'page')} not read: {why or left_out}" if missing else unlisted
    return PrefetchOutcome(found.pages, found.in_memory + read, reason, read)


def _read_each(daemon: Daemon, keys: bytes, deadline: Deadline) -> tuple[int, str]:
    """Returns how many pages were read, which need not follow one another, and why the others were not; "": unknown."""
    read = 0
    while keys:
        part = daemon.ask(Fetch(1, PAGE_KEYS.part(keys, 0, _AT_ONCE), deadline.left), Fetched)
        first = len(part.outcomes) - len(part.outcomes.lstrip(bytes([FetchOutcome.IN_MEMORY])))
        read += first
        failed = part.outcomes[first : first + 1]
        if failed and (FetchOutcome.PENDING in failed or FetchOutcome.IN_MEMORY not in part.outcomes):
            return read, part.reason or (_NO_ROOM if FetchOutcome.NO_ROOM in failed else "")
        # An absent page has left the disk by now. Those without room find it when the first ones have been read.
        keys = PAGE_KEYS.part(keys, first + failed.count(FetchOutcome.ABSENT), PAGE_KEYS.count(keys))
    return read, ""
