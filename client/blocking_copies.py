"""Copies that the caller waits for, between a registered cache and pages: on the host, and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pagetier.client.async_copy.copier import AsyncCopier, open_copier
from pagetier.client.destinations import unread_prefix
from pagetier.client.keys import Keys
from pagetier.client.load_or_compute import LoadOrCompute
from pagetier.client.match import Match
from pagetier.client.misuse import seconds_to_wait
from pagetier.client.page_client import PageClient
from pagetier.client.paged_blocks import Blocks
from pagetier.client.prompt_reader import PromptReader
from pagetier.client.store_result import StoreResult
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.kernels.layout.transfer import PagedCache
from pagetier.shm.clock import Deadline
from pagetier.shm.errors import PagetierError

_POLL_S = 1.0  # seconds between two checks whether the device has failed


class IncompleteLoadError(PagetierError):
    """Fewer tokens were loaded than were matched.

    Attributes:
        loaded: The number of tokens in the engine's blocks.
        matched: The number of tokens of the match.
    """

    def __init__(self, loaded: int, matched: int) -> None:
        super().__init__(f"only {loaded} of {matched} matched tokens were loaded")
        self.loaded, self.matched = loaded, matched


class HostCopies:
    """The copies of a cache in host memory that the caller waits for. Thread-safe."""

    def __init__(self, client: PageClient, cache: PagedCache) -> None:
        self._client, self._cache = client, cache

    def load(
        self,
        match: Match,
        slots: SlotMap,
        start_page: int,
        timeout: float | None,
        rule: LoadOrCompute | None = None,
    ) -> int:
        """Copies pages of a match into the cache, from `start_page` on.

        Args:
            match: A match that is not released.
            slots: The slots of one page or more.
            start_page: The first page to copy.
            timeout: Seconds to wait for pages on disk and in the fleet; None for the client's timeout.
            rule: Leaves out what the engine computes faster; None to load everything.

        Returns:
            How many pages were copied.
        """
        return self._client.load(match, Blocks(self._cache, slots), start_page, timeout, rule)

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

    def load(
        self,
        match: Match,
        slots: SlotMap,
        start_page: int,
        timeout: float | None,
        rule: LoadOrCompute | None = None,
    ) -> int:
        """Does what HostCopies.load() does."""
        copier = self._copier.open()
        seconds = seconds_to_wait(self._client, timeout)
        with self._read_rest(match, range(start_page, start_page + len(slots)), seconds, rule) as whole:
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
    def _read_rest(self, match: Match, pages: range, timeout: float, rule: LoadOrCompute | None) -> Iterator[Match]:
        """Yields a match that includes those of these pages that reached memory in time, from disk or fleet."""
        unread, present = unread_prefix(match, pages.start, pages.stop), pages.start * match.page_tokens
        if unread is None or not PromptReader(self._client, rule).read(unread, present, Deadline(timeout)):
            yield match
            return
        with match.again() as longer:
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
