"""Writes the subset of Markdown that the page of commands needs, in the form of mdformat."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Final, Self

_COLUMNS: Final = 100
_CODE: Final = re.compile("`[^`]+`")


class Markdown:
    """A page in Markdown, written from top to bottom, with the methods of Roff."""

    def __init__(self, title: str) -> None:
        self._blocks = [f"# {title}"]
        self._items: list[tuple[str, str]] = []

    def section(self, title: str) -> Self:
        """Adds a heading."""
        return self._add(f"## {title}")

    def subsection(self, title: str) -> Self:
        """Adds a smaller heading."""
        return self._add(f"### {title}")

    def text(self, text: str) -> Self:
        """Adds paragraphs, separated by empty lines."""
        return self._add(*map(_wrapped, text.strip().split("\n\n")))

    def item(self, term: str, text: str) -> Self:
        """Adds a term and its description. Terms that follow each other are a table."""
        self._items.append((f"`{term}`", " ".join(text.split())))
        return self

    def table(self, head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> Self:
        """Adds a table of two columns."""
        return self._add("\n".join(map(_row, (head, ("--", "--"), *rows))))

    def __str__(self) -> str:
        return "\n\n".join(self._add()._blocks) + "\n"

    def _add(self, *blocks: str) -> Self:
        items, self._items = self._items, []
        if items:
            self.table(("option", "meaning"), items)
        self._blocks += blocks
        return self


def _row(cells: tuple[str, str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<=", "\\<=")


def _wrapped(paragraph: str) -> str:
    """Returns lines of a paragraph, broken outside of code only."""
    whole = _CODE.sub(lambda code: code[0].replace(" ", "\0"), " ".join(paragraph.split()))
    lines = textwrap.fill(whole, _COLUMNS, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")
