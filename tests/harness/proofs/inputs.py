"""The inputs of a proof: the files that can change its result."""

from __future__ import annotations

import ast
import hashlib
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final

from proofs.shard import ROOT

_HELPERS: Final = tuple(
    ROOT / folder for folder in ("tests/harness", "tests/crash", "tests/engines", "tests/sglang", "bench")
)
"""Where the modules that tests import by their plain name lie, as in pyproject.toml."""


@cache
def files_of_the_tree() -> frozenset[str]:
    """Returns the paths of all files that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return frozenset(name for name in listed if name and (ROOT / name).is_file())


def inputs_of(patterns: Sequence[str], tests: Sequence[str]) -> list[str]:
    """Returns the paths of the inputs, sorted.

    Args:
        patterns: Files, folders that end with "/", and with "!" before it what these contain and is no input.
        tests: Files and folders of tests. They are inputs, and so are the helper modules that they import.

    Returns:
        Paths from the root of the repository.

    Raises:
        ValueError: A pattern or a test names nothing.
    """
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    refused = tuple(pattern[1:] for pattern in patterns if pattern.startswith("!"))
    product = {name for pattern in wanted for name in _below(pattern)}
    own = {name for test in tests for name in _below(test)}
    kept = {name for name in product if not name.startswith(refused)} if refused else product
    return sorted(kept | own | helpers_of(own))


def digest_of(names: Iterable[str], declared: bytes) -> str:
    """Returns a digest of files, their names, and what else is declared of a proof."""
    whole = hashlib.sha256(declared)
    for name in names:
        whole.update(f"\0{name}\0".encode() + hashlib.sha256((ROOT / name).read_bytes()).digest())
    return whole.hexdigest()[:32]


def helpers_of(names: Iterable[str]) -> set[str]:
    """Returns the files of the helper modules that Python files import, directly or through others."""
    found: set[str] = set()
    waiting = [name for name in names if name.endswith(".py")]
    while waiting:
        new = _imported(waiting.pop()) - found
        found |= new
        waiting += new
    return found


def _below(name: str) -> set[str]:
    folder = name if name.endswith("/") else f"{name}/"
    found = {file for file in files_of_the_tree() if file == name or file.startswith(folder)}
    if not found:
        raise ValueError(f"no file of the repository is {name} or in it")
    return found


@cache
def _imported(name: str) -> frozenset[str]:
    """Returns the helper modules that a file imports. A package is all of its files: they read each other's data."""
    modules = _modules(ast.parse((ROOT / name).read_text()))
    return frozenset(file for module in modules for file in _files_of_module(module))


def _modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files_of_module(module: str) -> Iterator[str]:
    parts = module.split(".")
    for folder in _HELPERS:
        place = folder.joinpath(*parts).with_suffix(".py").relative_to(ROOT)
        yield from {str(place), str(place.with_suffix("") / "__init__.py")} & files_of_the_tree()
