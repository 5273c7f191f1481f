"""Stores and loads pages of SGLang's host pools, without SGLang's classes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.client import Client
from pagetier.client.engines.fleet_reads import FleetLimits
from pagetier.client.engines.sglang.engine.batch_times import BatchTimes
from pagetier.client.engines.sglang.engine.tier_counts import by_tier
from pagetier.client.engines.sglang.pools.device_pools import FULL, STATE
from pagetier.client.engines.sglang.pools.engine_groups import EngineGroup, hashes_of
from pagetier.client.engines.sglang.pools.host_pools import RIDES
from pagetier.client.group_match import GroupKeys, GroupMatch
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from pagetier.client.keys import Keys
from pagetier.client.load_or_compute import LoadMode, LoadOrCompute
from pagetier.client.prompt_reader import PromptReader
from pagetier.client.session_lookups import count_lookup, find, sample_lookup
from pagetier.client.store_result import Outcome
from pagetier.client.tier_speed import LoadTier
from pagetier.kernels.layout.slot_map import SlotMap
from pagetier.shm import clock
from pagetier.shm.clock import Deadline
from pagetier.shm.protocol import Prompt
from pagetier.shm.row_arrays import flags_of

_TRAILING: Final = "trailing_pages"
_MOST_BATCHES: Final = 4096  # between two reports

Groups = Mapping[str, EngineGroup]


class Restorable(msgspec.Struct, frozen=True):
    """The prefixes that can be restored, in pages.

    Attributes:
        lengths: The length of each of them, ascending.
        by_pool: The longest prefix for which each pool has what it needs.
    """

    lengths: tuple[int, ...] = ()
    by_pool: Mapping[str, int] = {}


class CopiedBatch(msgspec.Struct, frozen=True):
    """Pages that one call has copied, and its rate in GB/s of this rank's bytes."""

    pages: int
    rate: float


class StoragePages:
    """The pages of all host pools. Thread-safe.

    Args:
        client: The client, which close() closes.
        opened: Returns the groups by the name of their pool; None while the weights are not identified, and then
            nothing is cached.
        limits: What a call may wait for; `timeout` counts for daemon and disk too.
        load: When prefixes are loaded from disk and fleet, see load_modes().
        stores: Whether this rank stores its pages. Of replicas, one does so for all.

    Attributes:
        loaded: The last calls that have loaded pages; the caller removes those that it has reported.
        stored: The last calls that have stored pages.
        batches: Measures SGLang's batches.
    """

    def __init__(
        self,
        client: Client,
        opened: Callable[[], Groups | None],
        limits: FleetLimits,
        load: Mapping[LoadTier, LoadMode] = MappingProxyType({}),
        *,
        stores: bool = True,
    ) -> None:
        self._client, self._opened, self._limits, self._timeout = client, opened, limits, limits.timeout
        self._stores = stores
        self._reader = PromptReader(client, LoadOrCompute(load))
        self.batches = BatchTimes(self._reader.rule)
        self.loaded: deque[CopiedBatch] = deque(maxlen=_MOST_BATCHES)
        self.stored: deque[CopiedBatch] = deque(maxlen=_MOST_BATCHES)

    def count(self, keys: Sequence[str], extra: Any) -> int:
        """Returns how many pages, from the first on, any tier has. Those that are not in memory are read for load().

        It counts as a lookup.
        """
        groups = self._opened()
        if groups is None:
            return 0
        asked = _keys(groups[FULL], keys, extra)
        with self._client.find_groups((_whole(asked),)) as found:
            tokens = self._begin_read(found)
        return tokens // asked.namespace.page_tokens

    def restorable(self, keys: Sequence[str], transfers: Sequence[Any], extra: Any) -> Restorable:
        """Returns the prefixes for which all pools have what they need, in any tier. It counts as a lookup.

        Of those that need the fleet, it is the longest one only.

        Args:
            keys: SGLang's hashes of the pages.
            transfers: SGLang's transfers of the other pools. Their number of keys says how many pages at the end of a
                prefix a pool needs, unless it needs all.
            extra: SGLang's HiCacheStorageExtraInfo.
        """
        groups = self._opened()
        if groups is None:
            return Restorable()
        transfers = [one for one in transfers if one.name.value not in RIDES]
        asked = _keys(groups[FULL], keys, extra)
        prompt = _group_keys(groups, asked, hashes_of(keys), transfers)
        with self._client.find_groups(prompt) as found:
            pages = self._begin_read(found) // asked.namespace.page_tokens
            here = self._here(groups, found, min(pages, _available(found)), keys, transfers)
        if pages > max(here.lengths, default=0):
            return Restorable((*here.lengths, pages), dict.fromkeys(here.by_pool, pages))
        return here

    def _here(
        self, groups: Groups, found: GroupMatch, most: int, keys: Sequence[str], transfers: Sequence[Any]
    ) -> Restorable:
        """Returns the prefixes of at most `most` pages that memory and disk have."""
        located = self._located(found.groups[0].keys)
        pages = _leading(located)
        hashes, by_pool = hashes_of(keys[:pages]), {FULL: pages}
        # The tiers of the match are counted, so that no prefix may be longer if pages have come since.
        legal = np.arange(pages) < most
        for transfer in transfers:
            there = self._located(groups[transfer.name.value].keys(hashes)) != 0
            needed = max(1, len(transfer.keys or ())) if transfer.hit_policy == _TRAILING else pages
            own = _whole_windows(there, needed)
            by_pool[transfer.name.value] = int(np.flatnonzero(own)[-1]) + 1 if own.any() else 0
            legal &= own
        return Restorable(tuple((np.flatnonzero(legal) + 1).tolist()), by_pool)

    def _begin_read(self, found: GroupMatch) -> int:
        """Begins to read what memory lacks for a later load, and counts the lookup.

        SGLang does not call it on its scheduler's thread, which waits for nothing.

        Returns:
            The tokens of the longest prefix that can be restored.
        """
        limits, deadline = self._limits, Deadline(self._timeout)
        read = self._reader.plan(found, 0, deadline, limits.least, limits.ask_timeout)
        if read is not None:
            read.start()
        tokens = found.tokens if read is None else read.tokens
        session = self._client.session
        sample_lookup(session, found)
        counts = by_tier(found.lookup, found.tokens, found.available_tokens, tokens)
        never = self._reader.rule.never_loads(LoadTier.DISK)
        slower = 0 if never else max(0, found.available_tokens - tokens)
        count_lookup(session, msgspec.structs.replace(counts, disk_slower_tokens=slower))
        return tokens

    def load(self, name: str, keys: Sequence[str], indices: Any, extra: Any) -> int:
        """Loads pages of a pool, and returns how many, from the first on. It does not count as a lookup."""
        groups = self._opened()
        if groups is None or not keys:
            return 0
        group, began = groups[name], clock.now()
        with find(self._client.session, _keys(group, keys, extra)) as match:
            pages = group.cache.load(match, _slots(group, indices), 0, self._timeout)
        return _counted(self.loaded, group, pages, began)

    def store(self, name: str, keys: Sequence[str], indices: Any, extra: Any) -> list[bool]:
        """Stores pages.

        Returns:
            Which pages were not rejected: SGLang warns of a failed batch otherwise. A page that was left out is no
            failure; the next lookup says that it is absent.
        """
        groups = self._opened()
        if groups is None or not self._stores:
            return [not self._stores] * len(keys)
        group, began = groups[name], clock.now()
        result = group.cache.store(_keys(group, keys, extra), _slots(group, indices), self._timeout)
        _counted(self.stored, group, result.stored, began)
        return [code != Outcome.REFUSED for code in result.codes]

    def clear(self, timeout: float) -> list[str]:
        """Drops the pages of all pools, each within `timeout` seconds. Returns the pools that may have some left."""
        groups = (self._opened() or {}).items()
        return [pool for pool, group in groups if not self._client.flush(group.cache.namespace, timeout)]

    def close(self) -> None:
        """Closes the client."""
        self._client.close()

    def _located(self, keys: Keys) -> npt.NDArray[np.uint8]:
        """Returns the TierFlag of each page."""
        session = self._client.session
        return flags_of(session.locate(keys.data) if session is not None else bytes(len(keys)))


def _counted(batches: deque[CopiedBatch], group: EngineGroup, pages: int, began: float) -> int:
    """Adds a call that has copied pages to `batches`, and returns how many."""
    if pages:
        paged = group.cache.paged
        nbytes = pages * paged.page.nbytes / paged.shard.parts
        batches.append(CopiedBatch(pages, nbytes / max(1e-9, clock.now() - began) / 1e9))
    return pages


def _leading(flags: npt.NDArray[np.uint8]) -> int:
    """Returns how many pages, from the first on, have a flag."""
    return len(flags) if flags.all() else int((flags == 0).argmax())


def _whole_windows(there: npt.NDArray[np.bool_], needed: int) -> npt.NDArray[np.bool_]:
    """Returns for each prefix whether its last `needed` pages are there, or all if it is shorter."""
    sums = np.concatenate(([0], np.cumsum(there)))
    ends = np.arange(1, len(there) + 1)
    begins = np.maximum(0, ends - needed)
    return np.asarray(sums[ends] - sums[begins] == ends - begins)


def _whole(keys: Keys) -> GroupKeys:
    """Returns pages that are all needed for a prefix."""
    return GroupKeys(FullAttention(keys.namespace.page_tokens), keys)


def _available(found: GroupMatch) -> int:
    """Returns how many pages, from the first on, memory and disk have."""
    return found.available_tokens // found.groups[0].group.page_tokens


def _group_keys(groups: Groups, full: Keys, hashes: bytes, transfers: Sequence[Any]) -> tuple[GroupKeys, ...]:
    """Returns the keys of all pools, with what a prefix needs of each."""
    others = ((groups[transfer.name.value], transfer) for transfer in transfers)
    needed = [GroupKeys(_kind(group, transfer), group.keys(hashes)) for group, transfer in others]
    return (_whole(full), *needed)


def _kind(group: EngineGroup, transfer: Any) -> Group:
    """Returns what a prefix needs of a pool. The length of a window is that of the pages that SGLang names."""
    page = group.cache.page_tokens
    if group.name == STATE:
        return Recurrent(page)
    if transfer.hit_policy == _TRAILING:
        return SlidingWindow(page, max(1, len(transfer.keys or ())) * page + 1)
    return FullAttention(page)


def _keys(group: EngineGroup, hashes: Sequence[str], extra: Any) -> Keys:
    """Returns the keys of pages. SGLang names the pages before them if `hicache_storage_pass_prefix_keys` is set."""
    keys = group.keys(hashes_of(hashes))
    before = getattr(extra, "prefix_keys", None)
    if not before or not keys.prompts:
        return keys
    (last,) = group.keys(hashes_of(before[-1:]))
    return Keys(keys.namespace, keys.data, (Prompt(0, last, len(before)),))


def _slots(group: EngineGroup, indices: Any) -> SlotMap:
    blocks = group.blocks(indices)
    return group.cache.slots_of(blocks, len(blocks))
