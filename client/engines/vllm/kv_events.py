"""Announces stored pages as vLLM's KV cache events, once all workers have stored their parts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from pagetier.client.engines.vllm.messages import StoreCommand
from pagetier.client.engines.vllm.request_state import Tracked

MEDIUM: Final = "CPU"


class Announcement(msgspec.Struct, frozen=True):
    """The pages of one store command, with the hash and the tokens of each page for vLLM's BlockStored.

    Attributes:
        group: The index of the group.
        page_tokens: Tokens of a page.
        parent: The hash before the first page, or None.
        hashes: The hash of each page.
        tokens: The tokens of each page.
        lora: The request's LoRARequest, or None.
    """

    group: int
    page_tokens: int
    parent: bytes | None
    hashes: tuple[bytes, ...]
    tokens: tuple[tuple[int, ...], ...]
    lora: Any

    def events(self, stored: Sequence[bool]) -> list[Any]:
        """Returns one event for each page that is stored."""
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
            if stored[at]
        ]


class Announcer:
    """Keeps announced store commands until all workers have reported their results."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._planned: dict[int, Announcement] = {}
        self._reported: dict[int, list[bytes]] = {}
        self._events: list[Any] = []

    def add(self, command: StoreCommand, tracked: Tracked) -> StoreCommand:
        """Returns the same command with a number, under which workers report its result."""
        number = next(self._numbers)
        self._planned[number] = _announcement(command, tracked)
        return replace(command, number=number)

    def report(self, results: Mapping[int, Sequence[bytes]], workers: int) -> None:
        """Processes the results of workers: a page is stored when all of them have stored their part.

        Args:
            results: By number of the command, one byte for each page from each worker that has reported.
            workers: The number of workers.
        """
        for number, pages in results.items():
            reported = self._reported.setdefault(number, [])
            reported.extend(pages)
            if len(reported) >= workers:
                del self._reported[number]
                announcement = self._planned.pop(number)
                self._events += announcement.events([all(parts) for parts in zip(*reported, strict=True)])

    def taken(self) -> list[Any]:
        """Returns the events since the last call."""
        events, self._events = self._events, []
        return events


def _announcement(command: StoreCommand, tracked: Tracked) -> Announcement:
    group, request = tracked.groups[command.group], tracked.request
    tokens, last = group.kind.page_tokens, command.first + len(command.blocks)
    hashes = request.block_hashes[group.hashes - 1 : last * group.hashes : group.hashes]
    pages = range(command.first, last)
    return Announcement(
        command.group,
        tokens,
        hashes[command.first - 1] if command.first else None,
        tuple(hashes[command.first :]),
        tuple(tuple(request.all_token_ids[page * tokens : (page + 1) * tokens]) for page in pages),
        getattr(request, "lora_request", None),
    )
