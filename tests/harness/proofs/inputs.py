"""The inputs of a proof: the files that can change its result."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import PurePath
from typing import Final

from proofs.shard import ROOT

_HELPERS: Final = tuple(
    ROOT / folder for folder in ("tests/harness", "tests/crash", "tests/engines", "tests/sglang", "bench")
)
"""Where the modules that tests import by their plain name lie, as in pyproject.toml."""
_NAME: Final = re.compile(r"\w[\w/-]*(\.[\w-]+)+")
"""A string that may name a file or a module."""
_NOT_OF_THE_PRODUCT: Final = ("tests/", "bench/", "examples/")
_INCLUDE: Final = re.compile(r'^ *# *include "(.+)"', re.MULTILINE)


class UnknownInputError(Exception):
    """An input that no file of the repository is."""


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
        tests: Files and folders of tests. They are inputs, and so are their conftest.py and the helpers that they use.

    Returns:
        Paths from the root of the repository.

    Raises:
        UnknownInputError: A pattern or a test names nothing.
    """
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    refused = tuple(pattern[1:] for pattern in patterns if pattern.startswith("!"))
    product = {name for pattern in wanted for name in _below(pattern)}
    own = {name for test in tests for name in _below(test)}
    own |= {file for name in own for file in _beside(name)}
    kept = {name for name in product if not name.startswith(refused)} if refused else product
    return sorted(kept | own | helpers_of(own))


def digest_of(names: Iterable[str], declared: bytes) -> str:
    """Returns a digest of files, their names, and what else is declared of a proof."""
    whole = hashlib.sha256(declared)
    for name in names:
        whole.update(f"\0{name}\0".encode() + hashlib.sha256((ROOT / name).read_bytes()).digest())
    return whole.hexdigest()[:32]


def helpers_of(names: Iterable[str]) -> set[str]:
    """Returns the helpers that Python and C files use, directly or through others."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        new = _used_by(waiting.pop()) - found
        found |= new
        waiting += new
    return found


def forget_the_tree() -> None:
    """Has the files of the tree listed and read again, after they may have changed."""
    files_of_the_tree.cache_clear()
    _used_by.cache_clear()


def _below(name: str) -> set[str]:
    folder = name if name.endswith("/") else f"{name}/"
    found = {file for file in files_of_the_tree() if file == name or file.startswith(folder)}
    if not found:
        raise UnknownInputError(f"no file of the repository is {name} or in it")
    return found


def _beside(test: str) -> set[str]:
    """Returns what pytest reads for a test, and the other files of its package, which start each other by name."""
    folder = PurePath(test).parent
    conftests = {f"{above}/conftest.py" for above in PurePath(test).parents} & files_of_the_tree()
    package = _below(str(folder)) if f"{folder}/__init__.py" in files_of_the_tree() else set()
    return conftests | {name for name in package if not PurePath(name).name.startswith("test_")}


@cache
def _used_by(name: str) -> frozenset[str]:
    """Returns the helpers that a file imports, includes, or names in a string: programs, modules, data."""
    if name.endswith((".c", ".h")):
        return frozenset(_files_named(_INCLUDE.findall((ROOT / name).read_text()), name))
    if not name.endswith(".py"):
        return frozenset()
    tree = ast.parse((ROOT / name).read_text())
    used = _files_of_modules(_modules(tree))
    if PurePath(name).name != "conftest.py":  # it names the plugins of all tests
        named = [text for text in _strings(tree) if _NAME.fullmatch(text)]
        used |= _files_of_modules(text for text in named if "/" not in text) | _files_named(named, name)
    return frozenset(used)


def _modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _files_of_modules(modules: Iterable[str]) -> set[str]:
    places = [folder.joinpath(*module.split(".")).relative_to(ROOT) for module in modules for folder in _HELPERS]
    files = {file for at in places for file in (f"{at}.py", f"{at}/__init__.py", f"{at.parent}/__init__.py")}
    return files & files_of_the_tree()


def _files_named(names: Iterable[str], by: str) -> set[str]:
    """Returns the files that a file names, from the root of the repository, or in its own folder or below."""
    folder = f"{PurePath(by).parent}/"
    ends = tuple(f"/{name}" for name in names)
    from_root = {name for end in ends if (name := end[1:]).startswith(_NOT_OF_THE_PRODUCT)} & files_of_the_tree()
    return from_root | {file for file in files_of_the_tree() if file.startswith(folder) and file.endswith(ends)}
