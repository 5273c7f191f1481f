"""vLLM's events about what a cache holds: said once the pages are there, not when they are ordered."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from pagetier.client.engines.vllm.messages import StoreOrder
from pagetier.client.engines.vllm.request_state import Tracked

MEDIUM: Final = "CPU"


class Announcement(msgspec.Struct, frozen=True):
    """Pages of an order, as vLLM's BlockStored wants to know them: a hash, and tokens, for each page."""

    group: int
    page_tokens: int
    parent: bytes | None
    hashes: tuple[bytes, ...]
    tokens: tuple[tuple[int, ...], ...]
    lora: Any

    def events(self, there: Sequence[bool]) -> list[Any]:
        """One for each page that is there."""
        from vllm.distributed.kv_events import BlockStored
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash as external

        known = {field.name for field in msgspec.structs.fields(BlockStored)}
        parents = (self.parent, *self.hashes)
        return [
            BlockStored(
                block_hashes=[external(self.hashes[at])],
                parent_block_hash=external(parent) if (parent := parents[at]) is not None else None,
                token_ids=list(self.tokens[at]),
                block_size=self.page_tokens,
                lora_id=self.lora.adapter_id if self.lora else None,
                medium=MEDIUM,
                lora_name=self.lora.name if self.lora else None,
                **({"group_idx": self.group} if "group_idx" in known else {}),
            )
            for at in range(len(self.hashes))
            if there[at]
        ]


class Announcer:
    """Remembers what was ordered until all workers have told what became of it."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._ordered: dict[int, Announcement] = {}
        self._heard: dict[int, list[bytes]] = {}
        self._events: list[Any] = []

    def ordered(self, order: StoreOrder, tracked: Tracked) -> StoreOrder:
        """The same order with a number."""
        number = next(self._numbers)
        self._ordered[number] = _announcement(order, tracked)
        return replace(order, number=number)

    def told(self, told: Mapping[int, Sequence[bytes]], workers: int) -> None:
        """What workers said; a page is there if all of them have stored their part."""
        for number, pages in told.items():
            heard = self._heard.setdefault(number, [])
            heard.extend(pages)
            if len(heard) >= workers:
                del self._heard[number]
                announcement = self._ordered.pop(number)
                self._events += announcement.events([all(parts) for parts in zip(*heard, strict=True)])

    def taken(self) -> list[Any]:
        """Events since the last call."""
        events, self._events = self._events, []
        return events


def _announcement(order: StoreOrder, tracked: Tracked) -> Announcement:
    group, request = tracked.groups[order.group], tracked.request
    tokens, last = group.kind.page_tokens, order.first + len(order.blocks)
    hashes = request.block_hashes[group.hashes - 1 : last * group.hashes : group.hashes]
    pages = range(order.first, last)
    return Announcement(
        order.group,
        tokens,
        hashes[order.first - 1] if order.first else None,
        tuple(hashes[order.first :]),
        tuple(tuple(request.all_token_ids[page * tokens : (page + 1) * tokens]) for page in pages),
        getattr(request, "lora_request", None),
    )
