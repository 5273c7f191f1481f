"""Announces the pages that an engine could load as SGLang's KV cache events, beside those of its GPU."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from pagetier.client.engines.events.changes import LocationChanges
from pagetier.client.engines.events.idle_publisher import StepOrder
from pagetier.client.engines.events.page_runs import runs_of
from pagetier.client.engines.events.table import Change
from pagetier.client.hashing import mixed_into
from pagetier.shm._core import TierFlag
from pagetier.shm.page_rows import PAGE_KEYS

MEDIA: Final = {TierFlag.MEMORY: "CPU_PINNED", TierFlag.DISK: "DISK"}
"""The medium of each tier. Routers take an unknown one for a GPU."""

_GPU: Final = "GPU"
_MOST_WAITING: Final = 1 << 16
_NUMBER: Final = struct.Struct(">q")  # SGLang's hash in events is the begin of its whole hash

_V = TypeVar("_V")


class PlacedPage(msgspec.Struct, frozen=True, gc=False):
    """A page that SGLang has announced on its GPU.

    Attributes:
        at: The number of pages before it that are known.
        hash: SGLang's hash in events, the first 8 bytes of its hash of the page.
        parent: The hash of the page before it; None for the first one.
        tokens: The token IDs.
    """

    at: int
    hash: int
    parent: int | None
    tokens: array[int]


class SglangEvents:
    """Adds events of pagetier's tiers to those of SGLang.

    Called by SGLang's scheduler, but for publish_idle(), which another thread calls. Only the scheduler sees that
    SGLang was emptied, because its batch has AllBlocksCleared before the pages that are announced again.

    SGLang names tokens and parents in the events of its GPU only, and its whole hashes in the calls of the linker only.
    A page is announced once both are known. Requests with `cache_salt` or `extra_key` have other hashes in events than
    in the linker, so that their pages are not announced.

    Args:
        changes: Follows where pages are.
        stored: SGLang's class BlockStored.
        removed: SGLang's class BlockRemoved.
    """

    def __init__(self, changes: LocationChanges[PlacedPage], stored: Any, removed: Any) -> None:
        self._changes, self._stored, self._removed = changes, stored, removed
        self._digest = b""
        self._hashes: dict[int, bytes] = {}
        self._pages: dict[int, PlacedPage] = {}
        self._unsent: list[Any] = []
        self._order = StepOrder()

    def passed(self, digest: bytes, hashes: bytes) -> None:
        """Takes the hashes of pages with full attention that SGLang loads or stores.

        Args:
            digest: That of their namespace.
            hashes: 32 bytes for each page.
        """
        with self._order.lock:
            self._use(digest)
            self._connect(digest, hashes)

    def _connect(self, digest: bytes, hashes: bytes) -> None:
        for whole in PAGE_KEYS.split(hashes):
            (number,) = _NUMBER.unpack_from(whole)
            page = self._pages.get(number)
            if page is not None:
                self._changes.learn(mixed_into(whole, digest), page)
            else:
                _put(self._hashes, number, whole)

    def added_to(self, events: Sequence[Any], digest: bytes) -> list[Any]:
        """Returns SGLang's events and those of pagetier since the last call, of which published() is the end.

        Args:
            events: SGLang's events.
            digest: That of the namespace in which this engine finds pages now.
        """
        with self._order.lock:
            self._use(digest)
            for event in events:
                match type(event).__name__:
                    case "BlockStored" if event.medium == _GPU:
                        self._learn(event)
                    case "AllBlocksCleared":
                        self._changes.announce_again()
                        self._unsent = []
            together = [*events, *self._unsent, *self._as_events(self._changes.taken())]
            self._unsent = []
            self._order.step(publishes=bool(together))
            return together

    def published(self) -> None:
        """Records that the events of the last step are in SGLang's stream."""
        self._order.published()

    def publish_idle(self, publish: Callable[[list[Any]], object]) -> bool:
        """Publishes the events of pagetier since the last call, as IdleEvents says."""
        with self._order.lock:
            if not self._order.lets_thread_publish():
                return False
            self._unsent += self._as_events(self._changes.taken())
            if self._unsent:
                publish(self._unsent)
                self._unsent = []
            return self._changes.waits

    def _use(self, digest: bytes) -> None:
        """Removes all pages if they cannot be loaded any more: SGLang has been flushed, and announces that itself."""
        if digest != self._digest:
            self._digest = digest
            self._changes.clear()
            self._unsent = []

    def _learn(self, event: Any) -> None:
        size, parent = event.block_size, event.parent_block_hash
        for number, begin in zip(event.block_hashes, range(0, len(event.token_ids), size), strict=False):
            before = self._pages.get(parent) if parent is not None else None
            tokens = event.token_ids[begin : begin + size]
            if not isinstance(tokens[0], int):
                return  # pairs of tokens, of a draft model
            page = PlacedPage(before.at + 1 if before else 0, number, parent, array("q", tokens))
            _put(self._pages, number, page)
            whole = self._hashes.pop(number, None)
            if whole is not None:
                self._changes.learn(mixed_into(whole, self._digest), page)
            parent = number

    def _as_events(self, changes: Sequence[Change[PlacedPage]]) -> Iterator[Any]:
        """Returns the events of changes: what came, those nearest to the head first, and then what left."""
        came = ((medium, change.page) for change in changes for tier, medium in MEDIA.items() if change.came & tier)
        for medium, pages in runs_of(came):
            yield self._stored(
                block_hashes=[page.hash for page in pages],
                parent_block_hash=pages[0].parent,
                token_ids=[token for page in pages for token in page.tokens],
                block_size=len(pages[0].tokens),
                lora_id=None,
                medium=medium,
            )
        for tier, medium in MEDIA.items():
            left = [change.page.hash for change in changes if change.left & tier]
            if left:
                yield self._removed(block_hashes=left, medium=medium)


def _put(table: dict[int, _V], number: int, value: _V) -> None:
    """Adds an element, and removes the oldest one if there are too many."""
    table[number] = value
    if len(table) > _MOST_WAITING:
        del table[next(iter(table))]
