"""Lists the prompts' beginnings of a namespace by size. Imported only by `pagetier pages ls`, since it needs numpy.

Which page follows which is not known of pages that were stored with evict.policy = "lru". Of those, only pages that
were stored together are known to belong together.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.shm._core import LISTED_LAYOUT, NO_ENTRY, Observer, TierFlag
from pagetier.shm.row_arrays import dtype_of

_Rows: TypeAlias = npt.NDArray[np.void]
_Groups: TypeAlias = npt.NDArray[np.int64]


class Prefix(msgspec.Struct, frozen=True, kw_only=True):
    """Pages that begin with the same page.

    Attributes:
        key: The key of the first page, hexadecimal.
        pages: All pages.
        memory_pages: Pages in memory.
        disk_pages: Pages on disk, including those that are in memory too.
        bytes: Bytes of all pages, each counted once.
        used_ns: When a page was last used, or placed in the order of uses by the daemon that found it on disk.
    """

    key: str
    pages: int
    memory_pages: int
    disk_pages: int
    bytes: int
    used_ns: int


_LISTED: Final = dtype_of(LISTED_LAYOUT)


def largest_prefixes(observer: Observer, space: int, most: int) -> list[Prefix]:
    """Returns the prefixes of a namespace with the most bytes, the largest first."""
    rows = np.frombuffer(observer.pages(space), _LISTED)
    if not len(rows):
        return []
    roots = _roots(rows)
    _, groups = np.unique(_group_names(rows, roots), return_inverse=True)
    order = np.argsort(-np.bincount(groups, rows["size"]), kind="stable")[:most]
    return [_prefix(rows, roots, groups == group) for group in order]


def _roots(rows: _Rows) -> _Groups:
    """Returns for each row the row of the first page of its prompt, as far as the pages before it are known."""
    place = np.full(int(rows["entry"].max()) + 2, -1, np.int64)
    place[rows["entry"]] = np.arange(len(rows))
    known = (rows["parent"] != NO_ENTRY) & (rows["parent"] < len(place))
    parents = np.where(known, place[np.where(known, rows["parent"], 0)], -1)
    roots = np.where(parents < 0, np.arange(len(rows)), parents)
    for _ in range(len(rows).bit_length()):  # each step doubles the distance, so that a circle ends too
        roots = roots[roots]
    return roots


def _group_names(rows: _Rows, roots: _Groups) -> _Groups:
    """Returns for each row what it has in common with the other pages of its prefix: the run of the first page."""
    reservations = rows["reservation"][roots].astype(np.int64)
    return np.where(reservations > 0, reservations, -1 - roots)


def _prefix(rows: _Rows, roots: _Groups, chosen: npt.NDArray[np.bool_]) -> Prefix:
    pages = rows[chosen]
    firsts = rows[np.unique(roots[chosen])]
    first = firsts[np.argmax(firsts["used_ns"])]  # recency falls from the head of a prompt to its tail
    return Prefix(
        key=first["key"].tobytes().hex(),
        pages=len(pages),
        memory_pages=int(np.count_nonzero(pages["tiers"] & int(TierFlag.MEMORY))),
        disk_pages=int(np.count_nonzero(pages["tiers"] & int(TierFlag.DISK))),
        bytes=int(pages["size"].sum()),
        used_ns=int(pages["used_ns"].max()),
    )
