"""What a shell offers for the next word: commands with their summaries, without importing them."""

from __future__ import annotations

from collections.abc import Mapping

from click.shell_completion import CompletionItem

from pagetier.daemon.cli.registry import Place
from pagetier.daemon.cli.summary import summary_of


def commands_that_begin(begun: str, places: Mapping[str, Place]) -> list[CompletionItem]:
    """One for each command whose name begins so."""
    return [
        CompletionItem(name, help=summary_of(place.module, place.function))
        for name, place in places.items()
        if name.startswith(begun)
    ]
