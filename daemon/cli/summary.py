"""What a command does, in one line, out of its source: without importing it, nor the packages that it lies in."""

from __future__ import annotations

import ast
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path


def summary_of(module: str, function: str) -> str:
    """The first line of the docstring of a module's function; "" where source or docstring can not be found."""
    spec = _find(module)
    if spec is None or not spec.has_location or spec.origin is None:
        return ""
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    return next((_first_line(node) for node in tree.body if _is_function(node, function)), "")


def _find(module: str) -> ModuleSpec | None:
    """Asks the finders package by package; importlib.util.find_spec would import the packages."""
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
