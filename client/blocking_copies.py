"""Copies that the caller waits for, between a registered cache and pages: on the host, and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pagetier.client.async_copy.copier import AsyncCopier, open_copier
from pagetier.client.destinations import reachable_pages
from pagetier.client.keys import Keys
from pagetier.client.match import Match
from pagetier.client.page_client import PageClient
from pagetier.client.paged_blocks import Blocks
from pagetier.client.store_result import StoreResult
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.transfer import PagedCache
from pagetier.shm.clock import Deadline

_POLL_S = 1.0  # seconds between two checks whether the device has failed


class HostCopies:
    """The copies of a cache in host memory that the caller waits for. Thread-safe."""

    def __init__(self, client: PageClient, cache: PagedCache) -> None:
        self._client, self._cache = client, cache

    def load(self, match: Match, slots: SlotMap, start_page: int, timeout: float | None) -> int:
        """Copies pages of a match into the cache, from `start_page` on.

        Args:
            match: A match that is not released.
            slots: The slots of one page or more.
            start_page: The first page to copy.
            timeout: Seconds to wait for pages on disk and in the fleet; None for the client's timeout.

        Returns:
            How many pages were copied.
        """
        return self._client.load(match, Blocks(self._cache, slots), start_page, timeout)

    def store(self, keys: Keys, slots: SlotMap, timeout: float | None) -> StoreResult:
        """Stores the pages that are not skipped.

        Args:
            keys: The keys of the pages from the first page of the prompt on.
            slots: The slots of each key.
            timeout: Seconds to wait for the daemon; None for the client's timeout.

        Returns:
            What became of each page.
        """
        return self._client.store(keys, Blocks(self._cache, slots), timeout=timeout)


class DeviceCopies:
    """The copies of a cache on a GPU that the caller waits for: asynchronous copies after the engine's current stream.

    Thread-safe. Loads and stores wait for the copies as long as the device works. The `reserve_timeout` of the copy
    settings limits how long a store waits for the daemon.
    """

    def __init__(self, client: PageClient, copier: LazyCopier) -> None:
        self._client, self._copier = client, copier

    def load(self, match: Match, slots: SlotMap, start_page: int, timeout: float | None) -> int:
        """Does what HostCopies.load() does."""
        copier = self._copier.open()
        seconds = self._client.timeout if timeout is None else timeout
        with self._read_rest(match, start_page + len(slots), seconds) as whole:
            pages = max(0, min(len(slots), len(whole) - start_page))
            load = copier.load(whole, slots.some(0, pages), start_page, copier.engine_event())
        while not load.wait(load.layers - 1, _POLL_S):
            if load.failed or load.ended:
                return 0
        return load.pages

    def store(self, keys: Keys, slots: SlotMap, timeout: float | None) -> StoreResult:
        """Does what HostCopies.store() does."""
        copier = self._copier.open()
        store = copier.store(keys, slots, copier.engine_event())
        while not store.ready:
            store.wait(_POLL_S)
        return store.wait(0)

    @contextmanager
    def _read_rest(self, match: Match, end_page: int, timeout: float) -> Iterator[Match]:
        """Yields a match that includes the pages up to `end_page` that reached memory in time, from disk or fleet."""
        keys, available = match.keys, min(end_page, match.available_pages)
        deadline = Deadline(timeout)
        asks = keys is not None and timeout > 0 and available < min(end_page, reachable_pages(match))
        located = self._client.locate(keys[available:end_page], timeout) if keys is not None and asks else None
        in_fleet = located.wait(timeout) if located is not None else 0
        if keys is None or available + in_fleet <= len(match):
            yield match
            return
        left = deadline.left
        self._client.prefetch(keys[:end_page], left, located if in_fleet else None).wait(left)
        with self._client.rematch(match) as longer:
            yield longer


class LazyCopier:
    """The asynchronous copier of a cache, opened when it is first needed. Thread-safe.

    There is no lock, because a forked child would inherit one that another thread holds.
    """

    def __init__(self, client: PageClient, cache: PagedCache) -> None:
        self._client, self._cache = client, cache
        self._opened: dict[PagedCache, AsyncCopier] = {}

    def open(self) -> AsyncCopier:
        """Returns the copier; threads that call this at the same time get the same one. Raises as open_copier()."""
        copier = self._opened.get(self._cache)
        if copier is None:
            fresh = open_copier(self._client, self._cache)
            copier = self._opened.setdefault(self._cache, fresh)
            if copier is not fresh:
                fresh.close(0.0)
        return copier

    def close(self, timeout: float) -> bool:
        """Returns whether no copies are in flight; see AsyncCopier.close()."""
        copier = self._opened.get(self._cache)
        return copier is None or copier.close(timeout)
