"""Remembers the pages whose tokens are known, and where routers believe that each of them is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Generic, Protocol, TypeVar

import msgspec
import numpy as np

from pagetier.shm._core import KEY_BYTES
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.row_arrays import flags_of

_LOCATED_AT_ONCE: Final = 16384  # pages of a sweep, about 3 ms: the scheduler waits for it


class PromptPage(Protocol):
    """A page of a request."""

    @property
    def at(self) -> int:
        """The index of the page in its prompt."""


P = TypeVar("P", bound=PromptPage)


class Change(msgspec.Struct, Generic[P], frozen=True, gc=False):
    """A page that came into tiers or left them, as TierFlag."""

    page: P
    came: int
    left: int


class Locator(Protocol):
    """Knows where pages are: the session."""

    def locate(self, keys: bytes, /) -> bytes:
        """Returns the TierFlag of each page."""


class EventTable(Generic[P]):
    """A bounded table of pages. What exceeds the bound is not announced.

    A page is located again after it was learned or an event named it, so that the difference between where it is and
    where routers believe it is can be announced. A sweep locates all pages, some of them in each call of update().

    Args:
        limit: The most pages. Beyond it a page takes the place of one that is in no tier.
        shares: The keys of a page. It is in a tier once all of its shares are, since an engine needs them all.
    """

    def __init__(self, limit: int, shares: int = 1) -> None:
        self._limit, self._shares = limit, shares
        self._row_bytes = shares * KEY_BYTES
        self._rows: dict[bytes, int] = {}
        self._pages: list[P] = []
        self._keys = bytearray()
        self._tiers = bytearray()
        self._absent: dict[int, None] = {}  # rows of pages that are in no tier, the first one for the longest time
        self._changed: set[int] = set()
        self._sweep: range = range(0)

    def __len__(self) -> int:
        """Returns the number of pages."""
        return len(self._pages)

    @property
    def waits(self) -> bool:
        """Whether pages are to be located."""
        return bool(self._changed or self._sweep)

    def learn(self, key: bytes, page: P) -> None:
        """Adds a page, which will be located. `key` has the keys of all shares."""
        shares = PAGE_KEYS.split(key)
        if shares[0] in self._rows:
            return
        if len(self._pages) < self._limit:
            row = len(self._pages)
            self._keys += key
            self._tiers.append(0)
            self._pages.append(page)
        elif self._absent:  # routers know nothing of such a page, so that it can be forgotten without an event
            row = next(iter(self._absent))
            for share in PAGE_KEYS.split(self._key(row)):
                del self._rows[share]
            self._keys[row * self._row_bytes : (row + 1) * self._row_bytes] = key
            self._pages[row] = page
        else:
            return
        self._rows.update((share, row) for share in shares)
        self._changed.add(row)
        self._put_last(row)  # as a page in no tier: the first update() announces where it is

    def touch(self, keys: bytes) -> None:
        """Lets these pages be located, as far as they are known."""
        rows = map(self._rows.get, PAGE_KEYS.split(keys))
        self._changed.update(row for row in rows if row is not None)

    def sweep(self) -> None:
        """Lets all pages be located."""
        self._sweep = range(len(self._pages))

    def withdraw(self) -> list[Change[P]]:
        """Returns that all pages left all tiers."""
        changes = [Change(self._pages[row], 0, tiers) for row, tiers in enumerate(self._tiers) if tiers]
        self._forget_tiers()
        return changes

    def announce_again(self) -> None:
        """Records that routers believe of no page that it is anywhere, and lets all pages be located."""
        self._forget_tiers()
        self.sweep()

    def clear(self) -> list[Change[P]]:
        """Removes all pages, and returns that they left all tiers."""
        changes = self.withdraw()
        self.__init__(self._limit, self._shares)  # type: ignore[misc]
        return changes

    def update(self, locator: Locator, assumed: int) -> list[Change[P]]:
        """Locates the pages that may have changed.

        Args:
            locator: Knows where pages are.
            assumed: Tiers in which pages stay that were announced there: a disk that is being opened again.

        Returns:
            The changes, those nearest to the head first.
        """
        rows = sorted(self._changed, key=lambda row: self._pages[row].at)
        self._changed.clear()
        located = self._located(locator, b"".join(map(self._key, rows))) if rows else b""
        changes = list(self._differences(rows, located, assumed))
        changes += self._sweep_some(locator, assumed)
        return sorted(changes, key=lambda change: change.page.at)

    def _sweep_some(self, locator: Locator, assumed: int) -> Iterator[Change[P]]:
        rows, self._sweep = self._sweep[:_LOCATED_AT_ONCE], self._sweep[_LOCATED_AT_ONCE:]
        if not rows:
            return
        located = self._located(locator, bytes(self._keys[rows.start * self._row_bytes : rows.stop * self._row_bytes]))
        believed = flags_of(self._tiers[rows.start : rows.stop])
        different = np.flatnonzero(flags_of(located) != believed).tolist()
        yield from self._differences((rows[at] for at in different), bytes(located[at] for at in different), assumed)

    def _located(self, locator: Locator, keys: bytes) -> bytes:
        """Returns the tiers in which each page has all of its shares."""
        tiers = flags_of(locator.locate(keys)).reshape(-1, self._shares)
        return bytes(np.bitwise_and.reduce(tiers, axis=1))

    def _differences(self, rows: Iterable[int], located: bytes, assumed: int) -> Iterator[Change[P]]:
        for row, found in zip(rows, located, strict=True):
            before = self._tiers[row]
            now = found | (before & assumed)
            if now != before:
                self._put(row, now)
                yield Change(self._pages[row], now & ~before, before & ~now)

    def _put(self, row: int, tiers: int) -> None:
        self._tiers[row] = tiers
        if tiers:
            self._absent.pop(row, None)
        else:
            self._put_last(row)

    def _put_last(self, row: int) -> None:
        self._absent.pop(row, None)
        self._absent[row] = None

    def _forget_tiers(self) -> None:
        for row, tiers in enumerate(self._tiers):
            if tiers:
                self._put(row, 0)

    def _key(self, row: int) -> bytes:
        return bytes(self._keys[row * self._row_bytes : (row + 1) * self._row_bytes])
