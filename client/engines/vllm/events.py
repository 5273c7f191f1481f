"""Announces the pages that an engine could load as vLLM's KV cache events: what comes, and what leaves."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from pagetier.client.engines.events.changes import LocationChanges
from pagetier.client.engines.events.idle_publisher import StepOrder
from pagetier.client.engines.events.page_runs import runs_of
from pagetier.client.engines.events.table import Change
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.shm._core import TierFlag

MEDIA: Final = {TierFlag.MEMORY: "CPU", TierFlag.DISK: "STORAGE"}
"""The medium of each tier. Routers take an unknown one for a GPU."""


class KnownBlock(msgspec.Struct, frozen=True, gc=False):
    """A block of a request, with what a router has to know of it.

    Attributes:
        hash: vLLM's hash of it.
        parent: vLLM's hash of the block before it, or None.
        tokens: The token IDs.
        extra_keys: What vLLM hashed of it besides the tokens; None for nothing.
        lora: The request's LoRARequest, or None.
    """

    hash: bytes
    parent: bytes | None
    tokens: array[int]
    extra_keys: tuple[Any, ...] | None
    lora: Any


class KnownPage(msgspec.Struct, frozen=True, gc=False):
    """A page of a request. Routers know its blocks, but no pages.

    Attributes:
        group: The index of the group.
        at: The index of the page in its prompt.
        blocks: Its blocks.
    """

    group: int
    at: int
    blocks: tuple[KnownBlock, ...]


class VllmEvents:
    """Returns changes of where the pages of this engine's requests are as events.

    Called by vLLM's scheduler, but for publish_idle(), which another thread calls. Only a step sees resets of vLLM's
    prefix cache, because its batch has AllBlocksCleared before the pages that are announced again.

    Args:
        changes: Follows where pages are.
        specs: vLLM's KVCacheSpec of each group that has pages, by vLLM's number of the group.
        resets: Returns whether vLLM's own prefix cache was emptied since the last call, which makes routers forget all
            pages of this engine.
    """

    def __init__(
        self, changes: LocationChanges[KnownPage], specs: Mapping[int, Any], resets: Callable[[], bool]
    ) -> None:
        self._changes, self._resets = changes, resets
        self._of_groups = [{"group_idx": number, **fields_of_group(spec)} for number, spec in specs.items()]
        self._events: list[Any] = []
        self._sharing: Counter[tuple[str, int, bytes]] = Counter()  # the announced pages that have a block
        self._order = StepOrder()

    def learn(self, tracked: RequestState) -> None:
        """Adds the pages of a request that have got a hash. It is a cheap check if there are none."""
        with self._order.lock:
            self._learn(tracked)

    def _learn(self, tracked: RequestState) -> None:
        hashes = tracked.request.block_hashes
        if tracked.is_excluded or tracked.learned_hashes == len(hashes):
            return
        groups = len(self._of_groups)
        for at, group in enumerate(tracked.groups[:groups]):
            pages, shares = len(hashes) // group.hashes, tracked.keys[at::groups]
            for page in range(tracked.learned_hashes // group.hashes, min(pages, *map(len, shares))):
                key = b"".join(keys[page] for keys in shares)
                self._changes.learn(key, _known_page(tracked.request, at, page, group))
        tracked.learned_hashes = len(hashes)

    def scheduled(self, requests: Iterable[RequestState | None]) -> None:
        """Adds the pages of requests."""
        with self._order.lock:
            for tracked in requests:
                if tracked is not None:
                    self._learn(tracked)

    def clear(self) -> None:
        """Removes all pages: this engine cannot load them any more."""
        with self._order.lock:
            self._events += self._as_events(self._changes.clear())

    def taken(self) -> list[Any]:
        """Returns the events since the last call. published() is called once they are in vLLM's stream."""
        with self._order.lock:
            if cleared := self._resets():
                self._changes.announce_again()
                self._sharing.clear()
                self._events = []
            self._events += self._as_events(self._changes.taken())
            events, self._events = self._events, []
            self._order.step(publishes=cleared or bool(events))  # AllBlocksCleared comes before what is announced again
            return events

    def published(self) -> None:
        """Records that the events of the last step are in vLLM's stream."""
        self._order.published()

    def publish_idle(self, publish: Callable[[list[Any]], object]) -> bool:
        """Publishes the events since the last call, as IdleEvents says."""
        with self._order.lock:
            if not self._order.lets_thread_publish():
                return False
            self._events += self._as_events(self._changes.taken())
            if self._events:
                publish(self._events)
                self._events = []
            return self._changes.waits

    def _as_events(self, changes: Sequence[Change[KnownPage]]) -> Iterator[Any]:
        """Returns the events of changes: what came, those nearest to the head first, and then what left."""
        came = (
            ((medium, change.page.group), block)
            for change in changes
            for tier, medium in MEDIA.items()
            if change.came & tier
            for block in self._new_blocks(change.page, medium)
        )
        for (medium, group), blocks in runs_of(came):
            yield self._stored(blocks, medium, group)
        yield from self._removed(changes)

    def _removed(self, changes: Sequence[Change[KnownPage]]) -> Iterator[Any]:
        from vllm.distributed.kv_events import BlockRemoved
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash as external

        removed: dict[tuple[str, int], list[Any]] = {}
        for change in changes:
            for tier, medium in MEDIA.items():
                if change.left & tier:
                    lost = map(external, self._lost_blocks(change.page, medium))
                    removed.setdefault((medium, change.page.group), []).extend(lost)
        known = _fields_of(BlockRemoved)
        for (medium, group), hashes in removed.items():
            fields = {"group_idx": self._of_groups[group]["group_idx"], "locality": "LOCAL"}
            yield BlockRemoved(block_hashes=hashes, medium=medium, **_only(fields, known))

    def _new_blocks(self, page: KnownPage, medium: str) -> Iterator[KnownBlock]:
        """Yields the blocks of a page that came into a tier which no other page has there."""
        for block in page.blocks[:-1]:
            shared = medium, page.group, block.hash
            self._sharing[shared] += 1
            if self._sharing[shared] == 1:
                yield block
        yield page.blocks[-1]  # no two pages have the same last block

    def _lost_blocks(self, page: KnownPage, medium: str) -> Iterator[bytes]:
        """Yields the hashes of the blocks of a page that left a tier which no other page has there."""
        for block in page.blocks[:-1]:
            shared = medium, page.group, block.hash
            self._sharing[shared] -= 1
            if not self._sharing[shared]:
                del self._sharing[shared]
                yield block.hash
        yield page.blocks[-1].hash

    def _stored(self, blocks: Sequence[KnownBlock], medium: str, group: int) -> Any:
        """Returns the event of blocks that follow each other."""
        from vllm.distributed.kv_events import BlockStored
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash as external

        first = blocks[0]
        fields = {"locality": "LOCAL", **self._of_groups[group]}
        if any(block.extra_keys for block in blocks):
            fields["extra_keys"] = [block.extra_keys for block in blocks]
        return BlockStored(
            block_hashes=[external(block.hash) for block in blocks],
            parent_block_hash=external(first.parent) if first.parent is not None else None,
            token_ids=[token for block in blocks for token in block.tokens],
            block_size=len(first.tokens),
            lora_id=first.lora.adapter_id if first.lora else None,
            medium=medium,
            lora_name=first.lora.name if first.lora else None,
            **_only(fields, _fields_of(BlockStored)),
        )


def prefix_cache_resets(pool: Any) -> Callable[[], bool]:
    """Returns a function that returns whether vLLM's own prefix cache was emptied since its last call.

    vLLM then makes a new table of cached blocks, and publishes AllBlocksCleared, which has no medium.

    Args:
        pool: vLLM's BlockPool, or None.
    """
    table = getattr(pool, "cached_block_hash_to_block", None)

    def were_reset() -> bool:
        nonlocal table
        before, table = table, getattr(pool, "cached_block_hash_to_block", None)
        return table is not before

    return were_reset


def fields_of_group(spec: Any) -> dict[str, Any]:
    """Returns the fields by which routers tell groups apart: the kind of state and its window. Empty for old versions.

    Without them routers drop the blocks of all groups but the first.
    """
    from vllm.v1 import kv_cache_interface as interface

    if not hasattr(interface, "get_kv_cache_spec_kind"):
        return {}
    return {
        "kv_cache_spec_kind": interface.get_kv_cache_spec_kind(spec).value,
        "kv_cache_spec_sliding_window": interface.get_kv_cache_spec_sliding_window(spec),
    }


def _fields_of(kind: Any) -> frozenset[str]:
    """Returns the fields of an event, which depend on vLLM's version."""
    return frozenset(field.name for field in msgspec.structs.fields(kind))


def _only(fields: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in known}


def _known_page(request: Any, at: int, page: int, group: PagedGroup) -> KnownPage:
    blocks = range(page * group.blocks, (page + 1) * group.blocks)
    return KnownPage(at, page, tuple(_known_block(request, block, group) for block in blocks))


def _known_block(request: Any, block: int, group: PagedGroup) -> KnownBlock:
    begins, ends = block * group.block_tokens, (block + 1) * group.block_tokens
    hashes = group.hashes // group.blocks
    return KnownBlock(
        request.block_hashes[(block + 1) * hashes - 1],
        request.block_hashes[block * hashes - 1] if block else None,
        array("I", request.all_token_ids[begins:ends]),
        _extra_keys(request, begins, ends),
        getattr(request, "lora_request", None),
    )


def _extra_keys(request: Any, begins: int, ends: int) -> tuple[Any, ...] | None:
    """Returns what vLLM hashes of these tokens besides their IDs, in the form that vLLM publishes."""
    from vllm.v1.core import kv_cache_utils

    keys, _ = kv_cache_utils.generate_block_hash_extra_keys(request, begins, ends, 0)
    published = getattr(kv_cache_utils, "to_event_extra_keys", list)([keys])
    return published[0] if published else None
