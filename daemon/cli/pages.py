"""`pagetier pages`: the commands about the pages of single prompts and namespaces."""

from __future__ import annotations

from typing import Final

import click

from pagetier.daemon.cli.command_table import CommandEntry, CommandTable

_CLI: Final = "pagetier.daemon.cli"
PAGE_COMMANDS: Final = {
    "lookup": CommandEntry(f"{_CLI}.lookup", "Say how many pages of a prompt are here, in memory and on disk"),
    "ls": CommandEntry(f"{_CLI}.ls", "List the namespaces, or the largest prefixes of one"),
    "pin": CommandEntry(f"{_CLI}.pin", "Keep pages in memory: they are evicted last"),
    "prefetch": CommandEntry(f"{_CLI}.prefetch", "Read the pages of a prompt or a namespace from disk into memory"),
    "unpin": CommandEntry(f"{_CLI}.pin", "Let pages leave memory again that `pagetier pages pin` or an engine keeps"),
}


@click.group(cls=CommandTable, entries=PAGE_COMMANDS)
def pages() -> None:
    """List namespaces, look up and prefetch prompts, and pin pages."""
