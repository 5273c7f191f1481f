"""Joins pages that follow each other, so that one event can announce many."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Protocol, TypeVar


class ChainedPage(Protocol):
    """A page that names the one before it."""

    @property
    def hash(self) -> Any:
        """The engine's hash of the page."""

    @property
    def parent(self) -> Any:
        """The hash of the page before it; None for the first one."""


S = TypeVar("S", bound=Hashable)
P = TypeVar("P", bound=ChainedPage)


def runs_of(pages: Iterable[tuple[S, P]]) -> list[tuple[S, list[P]]]:
    """Returns runs of pages in which each page is the parent of the next one, in the order of their first pages.

    A page that comes after its parent is behind it in the same run, or in a later run.

    Args:
        pages: Pages, each with the series that it belongs to. Pages of different series are not joined.
    """
    runs: list[tuple[S, list[P]]] = []
    ends: dict[tuple[S, Any], list[P]] = {}  # runs by their last page
    for series, page in pages:
        run = ends.pop((series, page.parent), None) if page.parent is not None else None
        if run is None:
            runs.append((series, run := []))
        run.append(page)
        ends[series, page.hash] = run
    return runs
