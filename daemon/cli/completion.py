"""What a shell offers for the next word: commands with their summaries, without importing them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint

from click.shell_completion import CompletionItem

from .summary import summary_of


def commands_that_begin(begun: str, points: Mapping[str, EntryPoint]) -> list[CompletionItem]:
    """One for each command whose name begins so."""
    return [
        CompletionItem(name, help=summary_of(point.module, point.attr))
        for name, point in points.items()
        if name.startswith(begun)
    ]
