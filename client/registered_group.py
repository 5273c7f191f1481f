"""The cache of one layer group on this rank: its prompts as keys, and the copies between its slots and the pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, Self

from pagetier.client.arguments import seconds_to_wait
from pagetier.client.async_copy.copier import AsyncCopier, open_copier
from pagetier.client.async_copy.load_job import LoadHandle
from pagetier.client.async_copy.store_job import StoreHandle
from pagetier.client.attachment import AttachedClient
from pagetier.client.destinations import unread_prefix
from pagetier.client.group_match import GroupKeys, GroupMatch
from pagetier.client.hashing import Hashes, Tokens
from pagetier.client.hints import Hint
from pagetier.client.keys import Keys, Namespace
from pagetier.client.load_or_compute import LoadOrCompute
from pagetier.client.match import Match
from pagetier.client.paged_blocks import Blocks
from pagetier.client.prompt_reader import PromptReader
from pagetier.client.registration import CacheGroup, EngineOptions, namespace_of, paged_cache_of, shard_of
from pagetier.client.store_result import StoreResult
from pagetier.kernels.layout.slot_map import Ids, SlotMap, slot_map
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


class KeyedClient(AttachedClient, Protocol):
    """The part of a Client that registered caches use: pages by their keys."""

    def match(self, keys: Keys) -> Match:
        """See Client.match()."""

    def match_groups(self, groups: Sequence[GroupKeys], limit: int | None = None) -> GroupMatch:
        """See Client.match_groups()."""

    def find_groups(self, groups: Sequence[GroupKeys], limit: int | None = None) -> GroupMatch:
        """See Client.find_groups()."""

    def load(
        self, match: Match, out: Blocks, start_page: int, timeout: float | None, rule: LoadOrCompute | None
    ) -> int:
        """See Client.load()."""

    def store(self, keys: Keys, pages: Blocks, *, timeout: float | None) -> StoreResult:
        """See Client.store()."""

    def hint(self, keys: Keys, hint: Hint) -> bool:
        """See Client.hint()."""


class RegisteredGroup:
    """The cache of one layer group on this rank, in host memory or on a GPU. Thread-safe.

    RegisteredCache is the face of a model's only group, RegisteredGroups that of several. Adapters that know slots
    rather than block tables use the groups themselves.

    On a GPU, copies wait for the work that the calling thread has given to its current stream, unless `after` is given.

    Attributes:
        paged: The tensors and the layout of their pages.
        namespace: The namespace of the pages.
    """

    def __init__(self, client: KeyedClient, paged: PagedCache, namespace: Namespace) -> None:
        self.paged, self.namespace = paged, namespace
        self._client = client
        self._copiers: dict[PagedCache, AsyncCopier] = {}  # at most one
        self._on_gpu = paged.cache.device != "cpu"
        if self._on_gpu:
            self.copier()  # the arena is pinned in the background, and a missing GPU is reported now

    @classmethod
    def of(cls, client: KeyedClient, group: CacheGroup, model: str, options: EngineOptions, place: str = "") -> Self:
        """Returns a group as Client.register() describes it, with the place among the groups that namespace_of() takes.

        Raises:
            LayoutError: As paged_cache_of(), shard_of() and namespace_of() raise.
        """
        paged = paged_cache_of(group, shard_of(options))
        return cls(client, paged, namespace_of(paged, group, model, options, place))

    @property
    def page_tokens(self) -> int:
        """The number of tokens in a page."""
        return self.namespace.page_tokens

    def keys(self, tokens: Tokens | Keys | None, hashes: Hashes | None, extra: bytes | Sequence[bytes] = b"") -> Keys:
        """Returns the keys of the full pages of a prompt; see RegisteredCache.keys().

        Raises:
            TypeError: Not exactly one of tokens and hashes is given, they have another type, or `extra` comes without
                tokens.
            ValueError: Keys belong to another namespace, or as Namespace.keys() and Namespace.keys_of() raise.
        """
        if (tokens is None) == (hashes is None):
            raise TypeError("pass either tokens or hashes")
        if extra and (tokens is None or isinstance(tokens, Keys)):
            raise TypeError("extra belongs to tokens: keys and hashes have to contain it already")
        if hashes is not None:
            return self.namespace.keys_of(hashes)
        if not isinstance(tokens, Keys):
            return self.namespace.keys(tokens, extra)  # type: ignore[arg-type]  # not None: see above
        self.require_own(tokens)
        return tokens

    def require_own(self, keys: Keys) -> None:
        """Raises ValueError for keys of another namespace: its pages may have the same shape and mean another."""
        if keys.namespace != self.namespace:
            raise ValueError(f"keys of {keys.namespace.name} were given to the cache of {self.namespace.name}")

    def slots_of(self, block_table: Ids, pages: int) -> SlotMap:
        """Returns the slots of the first `pages` pages. Raises as slot_map() does, also if the table is too short."""
        return slot_map(block_table, pages, self.paged.page.tokens, self.paged.cache.block_tokens)

    def load(
        self,
        match: Match,
        slots: SlotMap,
        start_page: int,
        timeout: float | None,
        rule: LoadOrCompute | None = None,
    ) -> int:
        """Copies pages of a match into the cache, from `start_page` on, and waits for the copies.

        Args:
            match: A match that is not released.
            slots: The slots of one page or more.
            start_page: The first page to copy.
            timeout: Seconds to wait for pages on disk and in the fleet; None for the client's timeout.
            rule: Leaves out what the engine computes faster; None to load everything.

        Returns:
            How many pages were copied.
        """
        if not self._on_gpu:
            return self._client.load(match, Blocks(self.paged, slots), start_page, timeout, rule)
        seconds = seconds_to_wait(self._client, timeout)
        with self._read_rest(match, range(start_page, start_page + len(slots)), seconds, rule) as whole:
            pages = max(0, min(len(slots), len(whole) - start_page))
            load = self.start_load(whole, slots.some(0, pages), start_page)
        while not load.wait(load.layers - 1, _POLL_S):
            if load.failed or load.ended:
                return 0
        return load.pages

    def store(self, keys: Keys, slots: SlotMap, timeout: float | None) -> StoreResult:
        """Stores the pages that are not skipped, and waits for the copies.

        Args:
            keys: The keys of the pages from the first page of the prompt on.
            slots: The slots of each key.
            timeout: Seconds to wait for the daemon; None for the client's timeout. On a GPU the `reserve_timeout` of
                the copy settings limits it.

        Returns:
            What became of each page.
        """
        if not self._on_gpu:
            return self._client.store(keys, Blocks(self.paged, slots), timeout=timeout)
        store = self.start_store(keys, slots)
        while not store.ready:
            store.wait(_POLL_S)
        return store.wait(0)

    def start_load(self, match: Match, slots: SlotMap, start_page: int, after: object = None) -> LoadHandle:
        """Starts to load pinned pages, and returns at once; see RegisteredCache.async_load()."""
        copier = self._copiers.get(self.paged) or self.copier()
        return copier.load(match, slots, start_page, copier.engine_event() if after is None else after)

    def start_store(self, keys: Keys, slots: SlotMap, after: object = None) -> StoreHandle:
        """Starts a store, and returns at once; see RegisteredCache.async_store()."""
        copier = self._copiers.get(self.paged) or self.copier()
        return copier.store(keys, slots, copier.engine_event() if after is None else after)

    def copier(self) -> AsyncCopier:
        """Returns the copier of the asynchronous copies, opened by the first call. Raises as open_copier() does.

        Threads that call this at the same time get the same one. There is no lock, because a forked child would inherit
        one that another thread holds.
        """
        copier = self._copiers.get(self.paged)
        if copier is None:
            fresh = open_copier(self._client, self.paged)
            copier = self._copiers.setdefault(self.paged, fresh)
            if copier is not fresh:
                fresh.close(0.0)
        return copier

    def close(self, timeout: float) -> bool:
        """Closes the copier, if it was opened; see RegisteredCache.close()."""
        copier = self._copiers.get(self.paged)
        return copier is None or copier.close(timeout)

    @contextmanager
    def _read_rest(self, match: Match, pages: range, timeout: float, rule: LoadOrCompute | None) -> Iterator[Match]:
        """Yields a match that includes those of these pages that reached memory in time, from disk or fleet."""
        unread, present = unread_prefix(match, pages.start, pages.stop), pages.start * match.page_tokens
        reader, count = PromptReader(self._client, rule), match.count_slower
        if unread is None or not reader.read(unread, present, Deadline(timeout), count):
            yield match
            return
        with match.again() as longer:
            yield longer

    def __repr__(self) -> str:
        return f"<RegisteredGroup {self.namespace.name}: {self.paged!r}>"
