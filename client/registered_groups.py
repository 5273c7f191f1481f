"""The KV caches of a hybrid model that an engine has registered: one prompt, several layer groups, one hit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pagetier.client.arguments import seconds_of, seconds_to_wait
from pagetier.client.async_copy.load_job import LoadHandle
from pagetier.client.async_copy.store_job import StoreHandle
from pagetier.client.group_match import GroupKeys, GroupMatch
from pagetier.client.groups import FullAttention, Group, grain_of
from pagetier.client.hashing import Hashes, Tokens
from pagetier.client.keys import Keys
from pagetier.client.load_or_compute import ProcessRule
from pagetier.client.prompt_reader import PromptReader
from pagetier.client.registered_group import IncompleteLoadError, KeyedClient, RegisteredGroup
from pagetier.client.store_result import StoreResult
from pagetier.kernels.layout.slot_map import Ids, SlotMap
from pagetier.shm.clock import Deadline

_Table: TypeAlias = "npt.NDArray[np.integer[Any]]"

NO_BLOCK = -1
"""In a block table: the engine has no block here, for example because it is outside of the window."""


class RegisteredGroups:
    """The caches of all layer groups of one engine rank. Made by Client.register(groups=...). Thread-safe.

    A hit is the longest prefix on which all groups agree, and all groups are loaded or none. A prompt is given to all
    groups as token IDs, or as the engine's own hashes: a sequence with the hashes of each group's pages.

    Each group has a block table of its own, from the prompt's first token on, in which NO_BLOCK stands for a block that
    the engine does not have. The table of a Recurrent group has one entry for each page: the block whose state is, or
    will be, the state at the end of that page.

    Attributes:
        caches: The groups; their `copier` and `namespace` can be used directly.
        kinds: The kind of each group.
    """

    def __init__(self, client: KeyedClient, caches: Sequence[RegisteredGroup], kinds: Sequence[Group]) -> None:
        self.caches, self.kinds = tuple(caches), tuple(kinds)
        self._client, self._rule = client, ProcessRule()

    def keys(self, tokens: Tokens | None = None, *, hashes: Sequence[Hashes] | None = None) -> tuple[GroupKeys, ...]:
        """Returns the keys of the full pages of a prompt in each group.

        Args:
            tokens: The token IDs of the prompt.
            hashes: The hashes of each group's pages, instead of tokens.

        Returns:
            The keys of each group.

        Raises:
            TypeError: Not exactly one of tokens and hashes is given, or they have another type.
            ValueError: There are hashes for another number of groups, or as RegisteredCache.keys() raises.
        """
        own = (None,) * len(self.caches) if hashes is None else hashes
        if len(own) != len(self.caches):
            raise ValueError(f"hashes of {len(own)} groups for {len(self.caches)} groups")
        return tuple(
            GroupKeys(kind, cache.keys(tokens, group_hashes))
            for kind, cache, group_hashes in zip(self.kinds, self.caches, own, strict=True)
        )

    def match(
        self, tokens: Tokens | None = None, *, hashes: Sequence[Hashes] | None = None, limit: int | None = None
    ) -> GroupMatch:
        """Returns the longest hit, pinned until it is released. Never waits; see Client.match_groups().

        Tokens on disk that no load() has read count as missed at the release. Raises as keys().

        Args:
            tokens: See keys().
            hashes: See keys().
            limit: The number of tokens that the hit may have at most; None for no limit. An engine that needs the
                logits of the last token passes one token less than the prompt has.
        """
        return self._client.match_groups(self.keys(tokens, hashes=hashes), limit)

    def load(
        self, match: GroupMatch, block_tables: Sequence[Ids], *, timeout: float | None = None, strict: bool = False
    ) -> int:
        """Copies the pages of a hit into the blocks of all groups.

        If the hit continues on disk or in the fleet and the tables have room for it, those pages are read first, and
        loaded if all of them came in time and have blocks. The engine must not use the blocks until the call returns.

        Args:
            match: A match of these groups that is not released.
            block_tables: The prompt's blocks in each group. All pages that the hit needs have blocks.
            timeout: Seconds to wait for pages on disk and in the fleet, which is not asked with 0; None for the
                client's timeout. It does not limit the time for copying.
            strict: Raises if fewer tokens were loaded than are matched.

        Returns:
            The number of tokens that need no prefill; 0 if a page of any group could not be loaded.

        Raises:
            IncompleteLoadError: `strict` is set and fewer tokens than `match.tokens` were loaded.
            ValueError: The match is of other groups, a needed page has no block, a table names a block that does not
                exist, or a block twice, or there are tables for another number of groups.
        """
        self._require_own(match)
        tables = self._tables(block_tables)
        with self._read_rest(match, tables, timeout) as whole:
            copied = [
                cache.load(its, slots, 0, 0) if len(slots) else 0
                for cache, its, slots in zip(self.caches, whole.matches, self._needed_slots(whole, tables), strict=True)
            ]
            loaded = whole.tokens if copied == [len(its) for its in whole.matches] else 0
        match.matches[0].count_from_disk(max(0, loaded - match.tokens))
        if strict and loaded < match.tokens:
            raise IncompleteLoadError(loaded, match.tokens)
        return loaded

    def store(
        self,
        tokens: Tokens | None = None,
        block_tables: Sequence[Ids] = (),
        *,
        hashes: Sequence[Hashes] | None = None,
        timeout: float | None = None,
    ) -> tuple[StoreResult, ...]:
        """Stores this rank's part of the full pages that have all of their blocks and that a hit could need.

        The blocks may be overwritten when the call returns.

        Args:
            tokens: See keys().
            block_tables: The prompt's blocks in each group, at least for all full pages.
            hashes: See keys().
            timeout: Seconds to wait for the daemon, for each group; None for the client's timeout.

        Returns:
            For each group, what became of the pages that have all of their blocks and are useful, in their order.

        Raises:
            ValueError: A table has no room for all full pages, or names a block that does not exist; or as keys().
            TypeError: As for keys(), or a table is not of integers on the host.
        """
        plans = self._plans(self.keys(tokens, hashes=hashes), block_tables)
        return tuple(cache.store(keys, slots, timeout) for cache, (keys, slots) in zip(self.caches, plans, strict=True))

    def async_load(
        self, match: GroupMatch, block_tables: Sequence[Ids], *, after: object = None
    ) -> tuple[LoadHandle, ...]:
        """Starts to load the pinned pages of a hit, and returns at once; see RegisteredCache.async_load().

        The hit is loaded if each handle has as many `pages` as its group's match, and all layers become ready.

        Args:
            match: See load(). It may be released at once.
            block_tables: See load().
            after: See RegisteredCache.async_load().

        Returns:
            The load of each group.

        Raises:
            ValueError: As for load(), or `after` is not an event of the device.
            DeviceError: The device failed.
        """
        self._require_own(match)
        slots = self._needed_slots(match, self._tables(block_tables))
        return tuple(
            cache.start_load(its, group_slots, 0, after)
            for cache, its, group_slots in zip(self.caches, match.matches, slots, strict=True)
        )

    def async_store(
        self,
        tokens: Tokens | None = None,
        block_tables: Sequence[Ids] = (),
        *,
        hashes: Sequence[Hashes] | None = None,
        after: object = None,
    ) -> tuple[StoreHandle, ...]:
        """Starts to store the pages that store() stores, and returns at once; see RegisteredCache.async_store().

        Args:
            tokens: See store().
            block_tables: See store().
            hashes: See store().
            after: See RegisteredCache.async_store().

        Returns:
            The store of each group.

        Raises:
            ValueError: As for store(), or `after` is not an event of the device.
            TypeError: As for store().
            DeviceError: The device failed.
        """
        plans = self._plans(self.keys(tokens, hashes=hashes), block_tables)
        return tuple(
            cache.start_store(keys, slots, after) for cache, (keys, slots) in zip(self.caches, plans, strict=True)
        )

    def computed(self, seconds: float, *prompts: range) -> None:
        """Reports how long a step has taken; see RegisteredCache.computed()."""
        self._rule.computed(seconds, prompts)

    def close(self, timeout: float) -> bool:
        """Closes the cache of each group, see RegisteredCache.close(), in at most `timeout` seconds altogether."""
        deadline = Deadline(seconds_of("timeout", timeout))
        ended = [cache.close(deadline.left) for cache in self.caches]
        return all(ended)

    def _plans(self, groups: Sequence[GroupKeys], block_tables: Sequence[Ids]) -> list[tuple[Keys, SlotMap]]:
        """Returns the keys and slots of the pages to store in each group."""
        grain = grain_of(self.kinds)
        tables = self._tables(block_tables)
        return [
            _stored(cache, asked, table, grain) for cache, asked, table in zip(self.caches, groups, tables, strict=True)
        ]

    @contextmanager
    def _read_rest(self, match: GroupMatch, tables: Sequence[_Table], timeout: float | None) -> Iterator[GroupMatch]:
        """Yields the longer hit if its pages, for which there are blocks, reached memory in time from disk or fleet."""
        most = min(len(table) // _entries(cache) * cache.page_tokens for cache, table in self._with(tables))
        limit, deadline = min(most, match.asked), Deadline(seconds_to_wait(self._client, timeout))
        asks = (session := self._client.session) is not None and session.asks_fleet
        if limit <= match.tokens or not (asks or match.available_tokens > match.tokens):
            yield match
            return
        with self._client.find_groups(match.groups, limit) as reachable:
            reader, count = PromptReader(self._client, self._rule.rule), match.matches[0].count_slower
            reader.read(reachable, match.tokens, deadline, count)
        with self._client.find_groups(match.groups, limit) as longer:
            has_blocks = all(blocks is not None for blocks in self._blocks(longer, tables))
            yield longer if longer.tokens > match.tokens and has_blocks else match

    def _needed_slots(self, match: GroupMatch, tables: Sequence[_Table]) -> list[SlotMap]:
        """Returns the slots of the pages that the hit needs in each group. Raises ValueError for missing blocks."""
        slots = []
        for cache, its, blocks in zip(self.caches, match.matches, self._blocks(match, tables), strict=True):
            if blocks is None:
                raise ValueError(f"a hit at {match.tokens} tokens needs blocks that the table of {cache!r} lacks")
            slots.append(cache.slots_of(blocks, len(its)))
            cache.paged.loading(slots[-1])  # raises before copies of another group begin
        return slots

    def _blocks(self, match: GroupMatch, tables: Sequence[_Table]) -> Iterator[_Table | None]:
        """Yields the blocks of the pages that the hit needs in each group; None if the table lacks one."""
        for (cache, table), its, start in zip(self._with(tables), match.matches, match.start_pages, strict=True):
            entries = _entries(cache)
            blocks = table[start * entries : (start + len(its)) * entries]
            yield blocks if len(blocks) == len(its) * entries and (blocks >= 0).all() else None

    def _with(self, tables: Sequence[_Table]) -> Iterator[tuple[RegisteredGroup, _Table]]:
        return zip(self.caches, tables, strict=True)

    def _require_own(self, match: GroupMatch) -> None:
        """Raises TypeError without a match, ValueError for a match of other groups."""
        if not isinstance(match, GroupMatch):
            raise TypeError(f"load() takes the GroupMatch that match() returns, not {type(match).__name__}")
        if len(match.groups) != len(self.caches):
            raise ValueError(f"a match of {len(match.groups)} groups was given to {len(self.caches)} groups")
        for cache, asked in zip(self.caches, match.groups, strict=True):
            cache.require_own(asked.keys)

    def _tables(self, block_tables: Sequence[Ids]) -> list[_Table]:
        if len(block_tables) != len(self.caches):
            raise ValueError(f"{len(block_tables)} block tables for {len(self.caches)} groups")
        return [np.asarray(table) for table in block_tables]

    def __repr__(self) -> str:
        return f"<RegisteredGroups {', '.join(map(repr, self.kinds))}>"


def _entries(cache: RegisteredGroup) -> int:
    """Returns the number of entries of the block table that belong to one page."""
    return cache.paged.page.tokens // cache.paged.cache.block_tokens


def _chosen(asked: GroupKeys, pages: Sequence[int]) -> Keys:
    """Returns the keys of some pages of a prompt. Without gaps they are a part of the prompt."""
    if isinstance(asked.group, FullAttention) and pages and len(pages) == pages[-1] - pages[0] + 1:
        return asked.keys[pages[0] : pages[-1] + 1]
    return Keys(asked.keys.namespace, b"".join(asked.keys[page] for page in pages), prompts=())


def _stored(cache: RegisteredGroup, asked: GroupKeys, table: _Table, grain: int) -> tuple[Keys, SlotMap]:
    """Returns the keys and slots of the pages that have all of their blocks and that a hit could need."""
    pages, entries = len(asked.keys), _entries(cache)
    if len(table) < pages * entries:
        raise ValueError(f"a table of {len(table)} blocks for {pages} pages of {entries} blocks in {cache!r}")
    blocks = table[: pages * entries].reshape(pages, entries)
    which = [page for page in range(pages) if (blocks[page] >= 0).all() and asked.group.useful(page, grain)]
    slots = cache.slots_of(blocks[which].reshape(-1), len(which))
    cache.paged.storing(slots)  # raises before copies of another group begin
    return _chosen(asked, which), slots
