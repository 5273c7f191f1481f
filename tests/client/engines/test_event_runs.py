"""Joins pages into runs: each page once, behind its parent, and only pages that follow each other."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pagetier.client.engines.events.page_runs import runs_of
from seeded_random import chance


class Page(NamedTuple):
    """A page with a hash of one byte, and its index in its prompt."""

    hash: bytes
    parent: bytes | None
    at: int


def page(name: int, parent: int | None, at: int) -> Page:
    return Page(bytes([name]), None if parent is None else bytes([parent]), at)


def test_pages_of_a_prompt_are_one_run() -> None:
    pages = [page(1, None, 0), page(2, 1, 1), page(3, 2, 2)]
    assert runs_of([("CPU", one) for one in pages]) == [("CPU", pages)]


def test_series_and_branches_are_runs_of_their_own() -> None:
    root, first, second, far = page(1, None, 0), page(2, 1, 1), page(3, 1, 1), page(9, 8, 5)
    came = [("CPU", root), ("STORAGE", root), ("CPU", first), ("CPU", second), ("CPU", far)]
    assert runs_of(came) == [("CPU", [root, first]), ("STORAGE", [root]), ("CPU", [second]), ("CPU", [far])]


def test_roots_are_not_joined() -> None:
    roots = [page(1, None, 0), page(2, None, 0)]
    assert runs_of([("CPU", one) for one in roots]) == [("CPU", [one]) for one in roots]


def test_random_trees_come_parents_first_and_complete() -> None:
    numbers = chance()
    for _ in range(200):
        pages = _tree(numbers)
        came = [(str(tier), one) for one in pages for tier in range(2) if numbers.integers(3)]
        runs = runs_of(came)
        flat = [(series, one) for series, run in runs for one in run]
        assert sorted(map(repr, flat)) == sorted(map(repr, came))
        announced: set[tuple[str, bytes]] = set()
        for series, run in runs:
            assert all(after.parent == before.hash for before, after in pairwise(run))
            for one in run:
                assert (
                    one.parent is None or (series, one.parent) in announced or (series, one.parent) not in names(came)
                )
                announced.add((series, one.hash))


def names(came: list[tuple[str, Page]]) -> set[tuple[str, bytes]]:
    return {(series, one.hash) for series, one in came}


def _tree(numbers: np.random.Generator) -> list[Page]:
    """Returns pages of a random tree, those nearest to the root first."""
    pages: list[Page] = []
    for name in range(int(numbers.integers(1, 40))):
        above = pages[int(numbers.integers(len(pages)))] if pages and numbers.integers(8) else None
        pages.append(page(name, above.hash[0] if above else None, above.at + 1 if above else 0))
    return sorted(pages, key=lambda one: one.at)
