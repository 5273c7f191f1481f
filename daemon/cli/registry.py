"""Where commands are: those of this room by name, those of other rooms and packages by entry points."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import click

GROUP = "pagetier.commands"


@dataclass(frozen=True)
class Place:
    """Where a command is defined."""

    module: str
    function: str

    def load(self) -> click.Command:
        """Imports it. Raises ImportError and AttributeError where it is not."""
        command = getattr(importlib.import_module(self.module), self.function)
        assert isinstance(command, click.Command)
        return command


def own() -> dict[str, Place]:
    """The commands of this room, by name: each a module and its function."""
    names = ("doctor", "flush", "resize", "stats", "top", "unit")
    return {name: Place(f"{__package__}.{name}", name) for name in names}


def others() -> dict[str, Place]:
    """What is installed as entry points. To look for them takes Python longer than a command of this room."""
    from importlib.metadata import entry_points

    return {point.name: Place(point.module, point.attr) for point in entry_points(group=GROUP)}
