"""Writes the subset of man(7) that the pages need."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Self

_SPECIAL = str.maketrans({"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"})
_CODE = re.compile("`([^`]+)`")


class Roff:
    """A manual page, written from top to bottom."""

    def __init__(self, name: str, section: int, release: str) -> None:
        self._lines = [f'.TH "{name.upper()}" "{section}" "" "{release}" "pagetier"', ".nh", ".ad l"]

    def section(self, title: str) -> Self:
        """Adds a heading in capitals, except for one in brackets, which is the name of a table."""
        return self._add(f'.SH "{title}"' if title.startswith("[") else f".SH {title.upper()}")

    def subsection(self, title: str) -> Self:
        """Adds a smaller heading."""
        return self._add(f".SS {escaped(title)}")

    def text(self, text: str) -> Self:
        """Adds paragraphs, separated by empty lines; those that click must not wrap keep their lines."""
        for paragraph in text.strip().split("\n\n"):
            self._add(".PP")
            if paragraph.startswith("\b\n"):
                self.lines(paragraph.removeprefix("\b\n").splitlines())
            else:
                self._add(marked(" ".join(paragraph.split())))
        return self

    def lines(self, lines: Iterable[str]) -> Self:
        """Adds unformatted lines, such as an example."""
        return self._add(".nf", *map(escaped, lines), ".fi")

    def item(self, term: str, text: str) -> Self:
        """Adds a term in bold, and its description."""
        return self._add(".TP", f"\\fB{escaped(term)}\\fR", marked(" ".join(text.split())))

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _add(self, *lines: str) -> Self:
        self._lines += lines
        return self


def escaped(text: str) -> str:
    """Returns the text with roff's special characters escaped."""
    line = text.translate(_SPECIAL)
    return f"\\&{line}" if line.startswith((".", "\\(aq")) else line


def marked(text: str) -> str:
    """Returns the text with its parts between backquotes in bold."""
    return escaped("".join(_bold(piece, at) for at, piece in enumerate(_CODE.split(text)))).replace("\0", "\\f")


def _bold(piece: str, at: int) -> str:
    return f"\0B{piece}\0R" if at % 2 else piece
