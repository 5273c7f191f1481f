"""`pagetier pages lookup`."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import click
import msgspec

from pagetier.daemon.cli.daemon_connection import daemon_at, socket_option
from pagetier.daemon.cli.page_arguments import FileCommand, named_pages, pages_options
from pagetier.daemon.stats.page_lookup import found_pages, lookup_note, no_chain
from pagetier.shm.units import counted


@click.command(cls=FileCommand)
@socket_option
@pages_options
@click.option("--json", "show", flag_value="json", help="Print one JSON object.")
def lookup(
    socket: Path, namespace: str, keys_file: IO[bytes] | None, tokens_file: IO[bytes] | None, show: str | None
) -> None:
    """Say how many pages of a prompt are here, in memory and on disk.

    Reads shared memory only: no page is pinned, and no page counts as used.

    Exit codes: 0: success; 1: no such namespace; 2: invalid usage; 3: no daemon.
    """
    with daemon_at(socket) as daemon:
        space, keys = named_pages(daemon.observer, namespace, keys_file, tokens_file)
        tiers = daemon.observer.locate(keys)
        no_token = tokens_file and keys and not any(tiers)
        note = no_chain(space) if no_token else lookup_note(daemon.observer, space, keys)
    found = found_pages(tiers, space.page_tokens, note)
    if note:
        click.echo(f"note: {note}", err=True)
    if show:
        click.echo(msgspec.json.encode(found))
        return
    click.echo(
        f"the first {found.prefix:,} of {counted(found.pages, 'page')} ({found.prefix_tokens:,} tokens) are here: "
        f"{found.memory:,} in memory, {found.disk_only:,} only on disk"
    )
