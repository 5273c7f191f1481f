"""The little of man(7) that the pages need."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Self

_SPECIAL = str.maketrans({"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"})
_CODE = re.compile("`([^`]+)`")


class Roff:
    """A page that is written from its head to its end."""

    def __init__(self, name: str, section: int, release: str) -> None:
        self._lines = [f'.TH "{name.upper()}" "{section}" "" "{release}" "pagetier"', ".nh", ".ad l"]

    def section(self, title: str) -> Self:
        """A heading, in capitals; what stands in brackets is a name, and stays as it is."""
        return self._add(f'.SH "{title}"' if title.startswith("[") else f".SH {title.upper()}")

    def subsection(self, title: str) -> Self:
        """A smaller heading."""
        return self._add(f".SS {escaped(title)}")

    def text(self, text: str) -> Self:
        """Paragraphs, apart by empty lines. One that click is told not to fill keeps its lines."""
        for paragraph in text.strip().split("\n\n"):
            self._add(".PP")
            if paragraph.startswith("\b\n"):
                self.lines(paragraph.removeprefix("\b\n").splitlines())
            else:
                self._add(marked(" ".join(paragraph.split())))
        return self

    def lines(self, lines: Iterable[str]) -> Self:
        """Lines as they are, such as an example."""
        return self._add(".nf", *map(escaped, lines), ".fi")

    def item(self, term: str, text: str) -> Self:
        """A term in bold and what it means."""
        return self._add(".TP", f"\\fB{escaped(term)}\\fR", marked(" ".join(text.split())))

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _add(self, *lines: str) -> Self:
        self._lines += lines
        return self


def escaped(text: str) -> str:
    """As it is, whatever it begins with."""
    line = text.translate(_SPECIAL)
    return f"\\&{line}" if line.startswith((".", "\\(aq")) else line


def marked(text: str) -> str:
    """What stands between backquotes in bold."""
    return escaped("".join(_bold(piece, at) for at, piece in enumerate(_CODE.split(text)))).replace("\0", "\\f")


def _bold(piece: str, at: int) -> str:
    return f"\0B{piece}\0R" if at % 2 else piece
