"""Announces stored pages as vLLM's KV cache events, once all workers have stored their parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
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
        extra_keys: What vLLM hashed of each page besides the tokens: images, the salt of a tenant; None for nothing.
        lora: The request's LoRARequest, or None.
        of_group: The fields that are the same for all pages of the group.
    """

    group: int
    page_tokens: int
    parent: bytes | None
    hashes: tuple[bytes, ...]
    tokens: tuple[tuple[int, ...], ...]
    extra_keys: tuple[tuple[Any, ...] | None, ...]
    lora: Any
    of_group: Mapping[str, Any]

    def events(self, stored: Sequence[bool]) -> list[Any]:
        """Returns one event for each page that is stored."""
        from vllm.distributed.kv_events import BlockStored
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash as external

        known = {field.name for field in msgspec.structs.fields(BlockStored)}  # it depends on vLLM's version
        of_group = {"group_idx": self.group, "locality": "LOCAL", **self.of_group}
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
                **({"extra_keys": [keys]} if (keys := self.extra_keys[at]) and "extra_keys" in known else {}),
                **{name: value for name, value in of_group.items() if name in known},
            )
            for at in range(len(self.hashes))
            if stored[at]
        ]


class Announcer:
    """Keeps announced store commands until all workers have reported their results.

    Args:
        specs: vLLM's KVCacheSpec of each group.
    """

    def __init__(self, specs: Iterable[Any]) -> None:
        self._of_groups = [fields_of_group(spec) for spec in specs]
        self._numbers = itertools.count(1)
        self._planned: dict[int, Announcement] = {}
        self._reported: dict[int, list[bytes]] = {}
        self._events: list[Any] = []

    def add(self, command: StoreCommand, tracked: Tracked) -> StoreCommand:
        """Returns the same command with a number, under which workers report its result."""
        number = next(self._numbers)
        self._planned[number] = _announcement(command, tracked, self._of_groups[command.group])
        return msgspec.structs.replace(command, number=number)

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


def _extra_keys(request: Any, begins: int, ends: int) -> tuple[Any, ...] | None:
    """Returns what vLLM hashes of these tokens besides their IDs, in the form that vLLM publishes."""
    from vllm.v1.core import kv_cache_utils

    keys, _ = kv_cache_utils.generate_block_hash_extra_keys(request, begins, ends, 0)
    published = getattr(kv_cache_utils, "to_event_extra_keys", list)([keys])
    return published[0] if published else None


def _announcement(command: StoreCommand, tracked: Tracked, of_group: Mapping[str, Any]) -> Announcement:
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
        tuple(_extra_keys(request, page * tokens, (page + 1) * tokens) for page in pages),
        getattr(request, "lora_request", None),
        of_group,
    )
