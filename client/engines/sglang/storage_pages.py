"""Stores and loads pages of SGLang's host pool, without SGLang's classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pagetier.client.client import Client
from pagetier.client.engines.sglang.groups import EngineGroup, hashes_of
from pagetier.client.keys import Keys
from pagetier.client.store_result import Outcome
from pagetier.kernels.layout.slot_map import SlotMap, slot_map
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Prompt

_STORED: Final = frozenset((Outcome.STORED, Outcome.PRESENT, Outcome.PENDING))


class StoragePages:
    """The pages of one host pool. Thread-safe.

    Args:
        client: The client, which close() closes.
        opened: Returns the group; None while the weights are not identified, and then nothing is cached.
        timeout: Seconds that a call may wait for daemon and disk.
    """

    def __init__(self, client: Client, opened: Callable[[], EngineGroup | None], timeout: float) -> None:
        self._client, self._opened, self._timeout = client, opened, timeout

    def count(self, keys: Sequence[str], extra: Any) -> int:
        """Returns how many pages, from the first on, are in memory or on disk. Those on disk are read for load()."""
        group = self._opened()
        if group is None:
            return 0
        with self._client.match(_keys(group, keys, extra)) as match:
            if match.keys is not None and match.available_pages > len(match):
                self._client.prefetch(match.keys[: match.available_pages], self._timeout)
            return match.available_pages

    def load(self, keys: Sequence[str], indices: Any, extra: Any) -> int:
        """Loads pages, and returns how many, from the first on."""
        group = self._opened()
        if group is None:
            return 0
        with self._client.match(_keys(group, keys, extra)) as match:
            return group.cache.copies.load(match, _slots(group, indices), 0, self._timeout)

    def store(self, keys: Sequence[str], indices: Any, extra: Any) -> list[bool]:
        """Stores pages, and returns which are stored or are being stored by another process."""
        group = self._opened()
        if group is None:
            return [False] * len(keys)
        result = group.cache.copies.store(_keys(group, keys, extra), _slots(group, indices), self._timeout)
        return [code in _STORED for code in result.codes]

    def clear(self) -> None:
        """Drops all pages of the namespace."""
        group = self._opened()
        if group is not None:
            self._client.flush(group.cache.namespace)

    def close(self) -> None:
        """Closes the client."""
        self._client.close()


def _keys(group: EngineGroup, hashes: Sequence[str], extra: Any) -> Keys:
    """Returns the keys of pages. SGLang names the pages before them if `hicache_storage_pass_prefix_keys` is set."""
    keys = group.keys(hashes_of(hashes))
    before = getattr(extra, "prefix_keys", None)
    if not before:
        return keys
    last = group.keys(hashes_of(before[-1:])).data[-KEY_BYTES:]
    return Keys(keys.namespace, keys.data, (Prompt(0, last, len(before)),))


def _slots(group: EngineGroup, indices: Any) -> SlotMap:
    blocks, paged = group.blocks(indices), group.cache.paged
    return slot_map(blocks, len(blocks), paged.page.tokens, paged.cache.block_tokens)
