"""Where in a TOML file a key is: Python's reader does not tell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_NAME: Final = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_PATH: Final = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_TABLE: Final = re.compile(rf"\s*\[\[?\s*({_PATH})\s*\]")
_KEY: Final = re.compile(rf"\s*({_PATH})\s*=")


def line_of(text: str, wanted: str) -> int | None:
    """The line, counted from 1, in which a valid file says `wanted` ("arena.size"), or the table or value it is in.

    None where that can not be seen. Text within strings of several lines may be taken for a key.
    """
    found = None
    for line, path in _paths(text):
        if path == wanted or path.startswith(wanted + "."):
            return line
        if found is None and wanted.startswith(path + "."):
            found = line
    return found


def _paths(text: str) -> Iterator[tuple[int, str]]:
    """Each line that names a table or a key, and its whole name."""
    table = ""
    for line, words in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(words):
            table = _plain(header[1])
            yield line, table
        elif key := _KEY.match(words):
            yield line, f"{table}.{_plain(key[1])}" if table else _plain(key[1])


def _plain(path: str) -> str:
    """Without quotes and blanks."""
    return re.sub(r"""[\s"']""", "", path)
