"""Finds the line of a key, or of text that Python's TOML parser rejects without naming a line."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

_NAME: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_PATH: Final = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_TABLE: Final = re.compile(rf"\s*\[\[?\s*({_PATH})\s*\]")
_KEY: Final = re.compile(rf"\s*({_PATH})\s*=")
_DIGITS: Final = re.compile("[0-9][0-9_]*")
# Comments and strings match as a whole, so that brackets inside of them are not counted.
_BRACKETS: Final = re.compile(
    r'''#[^\n]*|"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|([\[{])|([\]}])''', re.DOTALL
)

_Names: TypeAlias = tuple[str, ...]


class KeyLines:
    """The lines, counted from 1, in which a valid file names its tables and keys.

    Lines inside of multi-line strings may be mistaken for keys.
    """

    def __init__(self, text: str) -> None:
        self._paths = list(_paths(text))

    def line_of(self, *wanted: str) -> int | None:
        """Returns the line of `wanted` ("arena", "size"), or of the table or value around it; None if not found."""
        found = None
        for line, path in self._paths:
            if path[: len(wanted)] == wanted:
                return line
            if found is None and path and wanted[: len(path)] == path:
                found = line
        return found


def line_of_long_number(text: str) -> int:
    """Returns the line of the first number with more digits than Python parses."""
    most = sys.get_int_max_str_digits()
    runs = (run for run in _DIGITS.finditer(text) if len(run[0].replace("_", "")) > most)
    return _line(text, next((run.start() for run in runs), 0))


def line_of_deepest(text: str) -> int:
    """Returns the line in which brackets are nested most deeply."""
    depth = deepest = at = 0
    for found in _BRACKETS.finditer(text):
        depth += bool(found[1]) - bool(found[2])
        if depth > deepest:
            deepest, at = depth, found.start()
    return _line(text, at)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _paths(text: str) -> Iterator[tuple[int, _Names]]:
    """Yields each line that names a table or a key, with its full name."""
    table: _Names = ()
    for line, words in enumerate(text.split("\n"), start=1):  # TOML knows no other line separator
        if header := _TABLE.match(words):
            table = _parts(header[1])
            yield line, table
        elif key := _KEY.match(words):
            yield line, (*table, *_parts(key[1]))


def _parts(path: str) -> _Names:
    """Returns the parts of a dotted name; none for text in a string that only looks like a name."""
    try:
        document: Any = tomllib.loads(f"{path} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    parts = []
    while isinstance(document, dict):
        ((part, document),) = document.items()
        parts.append(part)
    return tuple(parts)
