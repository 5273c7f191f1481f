"""Finds commands: those of this room by name, those of other rooms and packages by entry points."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

import click
from click.shell_completion import CompletionItem

GROUP = "pagetier.commands"


@dataclass(frozen=True)
class CommandLocation:
    """The module and function that define a command."""

    module: str
    function: str

    def load(self) -> click.Command:
        """Returns the command, which is imported. Raises ImportError or AttributeError if it does not exist."""
        command = getattr(importlib.import_module(self.module), self.function)
        assert isinstance(command, click.Command)
        return command


def own() -> dict[str, CommandLocation]:
    """Returns the commands of this room by name."""
    names = ("doctor", "flush", "resize", "stats", "top", "unit")
    return {name: CommandLocation(f"{__package__}.{name}", name) for name in names}


def others() -> dict[str, CommandLocation]:
    """Returns the commands that are installed as entry points.

    Finding them takes longer than a command of this room.
    """
    from importlib.metadata import entry_points

    return {point.name: CommandLocation(point.module, point.attr) for point in entry_points(group=GROUP)}


def summary_of(module: str, function: str) -> str:
    """Returns the first line of a function's docstring, without importing its module; "" if it cannot be found."""
    spec = _find(module)
    if spec is None or not spec.has_location or spec.origin is None:
        return ""
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    return next((_first_line(node) for node in tree.body if _is_function(node, function)), "")


def _find(module: str) -> ModuleSpec | None:
    """Returns the spec of a module, found package by package: importlib.util.find_spec would import the packages."""
    spec: ModuleSpec | None = None
    path = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _find_one(".".join(parts[:depth]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


def _find_one(name: str, path: list[str] | None) -> ModuleSpec | None:
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def _is_function(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _first_line(node: ast.stmt) -> str:
    assert isinstance(node, ast.FunctionDef)
    return (ast.get_docstring(node) or "").partition("\n")[0].removesuffix(".")


def commands_that_begin(begun: str, places: Mapping[str, CommandLocation]) -> list[CompletionItem]:
    """Returns one completion for each command whose name begins with `begun`."""
    return [
        CompletionItem(name, help=summary_of(place.module, place.function))
        for name, place in places.items()
        if name.startswith(begun)
    ]
