"""Remembers the pages that only vLLM's own cache has, and stores each of them when its block is about to be reused.

No block is kept from reuse: the messages of the steps name all blocks that get new content, and the worker waits for
the stores that still read one of them, or cancels them (`WorkerHalf.end_overwritten_stores`). So no block can leak,
vLLM's order of eviction does not change, and a page that is lost is only a miss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Any, Final, Protocol

import msgspec

from pagetier.client.engines.vllm.counters import ConnectorCounters
from pagetier.client.engines.vllm.group_kinds import kind_of
from pagetier.client.engines.vllm.messages import StoreCommand
from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.engines.vllm.store_planner import store_commands
from pagetier.client.groups import FullAttention
from pagetier.shm.page_rows import PAGE_KEYS

log = logging.getLogger("vllm.pagetier")

_DECAY: Final = 64  # steps that take blocks after which the largest of them counts about a third


class EngineBlocks(Protocol):
    """The blocks of vLLM's own cache."""

    def hash_of(self, block: int) -> object:
        """Returns the hash of a block's content, or None if vLLM does not cache it."""

    def free(self) -> Iterator[int]:
        """Yields the blocks that no request uses. The first one is reused first."""


class BlockPoolView:
    """Reads vLLM's BlockPool, and changes nothing.

    Args:
        pool: The BlockPool.
    """

    def __init__(self, pool: Any) -> None:
        self._blocks, self._queue = pool.blocks, pool.free_block_queue

    def hash_of(self, block: int) -> object:
        """Returns the hash of a block's content, or None if vLLM does not cache it."""
        return self._blocks[block].block_hash

    def free(self) -> Iterator[int]:
        """Yields the blocks that no request uses. The list begins and ends with a block of number -1."""
        block = self._queue.fake_free_list_head.next_free_block
        while block is not None and block.block_id >= 0:
            yield block.block_id
            block = block.next_free_block


class _Page(msgspec.Struct, frozen=True, gc=False):
    """A page in blocks of vLLM's cache.

    Attributes:
        at: Its index in the prompt.
        key: Its key.
        before: The key of the page before it, b"" if there is none.
        salt: The salt of its namespace.
        blocks: Its blocks.
        content: vLLM's hash of each block.
    """

    at: int
    key: bytes
    before: bytes
    salt: str
    blocks: tuple[int, ...]
    content: tuple[object, ...]


class GpuPages:
    """The pages in vLLM's own cache that are offered to the daemon when they leave it. At most one for each block.

    A page of several blocks is known by its last one. vLLM frees that one first, and other pages cannot share it as
    they may share those before it. The daemon copies nothing of a page that it has, but notes its use.

    Args:
        blocks: The blocks of vLLM's cache.
        step_blocks: The blocks that a step can fill by computing.
        counters: Counts the pages whose blocks were reused before they were stored.
    """

    def __init__(self, blocks: EngineBlocks, step_blocks: int, counters: ConnectorCounters) -> None:
        self._blocks, self._step_blocks, self._counters = blocks, step_blocks, counters
        self._pages: dict[int, _Page] = {}
        self._moved = self._looked_up = self._most_taken = 0

    def __len__(self) -> int:
        """Returns the number of pages."""
        return len(self._pages)

    def clear(self) -> None:
        """Forgets all pages."""
        self._pages.clear()

    def remember(self, commands: Iterable[StoreCommand]) -> Iterator[StoreCommand]:
        """Remembers pages instead of storing them. Yields commands for those that vLLM does not cache."""
        for command in commands:
            cached = self._remember(command)
            self._moved += cached * len(command.blocks) // command.pages
            if cached < command.pages:
                yield _rest_of(command, cached)

    def plan(self, tracked: Mapping[str, RequestState], output: Any, written: Set[int]) -> Iterator[StoreCommand]:
        """Yields the store commands of a step.

        Args:
            tracked: The requests.
            output: vLLM's SchedulerOutput.
            written: The blocks that get new content in the step.
        """
        self._forget(written)
        for request in _resumed(tracked, output):
            request.plan_again()
        yield from self.remember(store_commands(tracked, output))
        yield from _commands_of(self._leaving())

    def _remember(self, command: StoreCommand) -> int:
        """Remembers pages up to the first one that vLLM does not cache. Returns their number."""
        before, size = command.before or b"", len(command.blocks) // command.pages
        for at, key in enumerate(PAGE_KEYS.split(command.keys)):
            blocks = command.blocks[at * size : (at + 1) * size]
            content = self._content_of(blocks)
            if None in content:
                return at
            self._pages[blocks[-1]] = _Page(command.first + at, key, before, command.salt, blocks, content)
            before = key
        return command.pages

    def _content_of(self, blocks: Sequence[int]) -> tuple[object, ...]:
        return tuple(map(self._blocks.hash_of, blocks))

    def _forget(self, written: Set[int]) -> None:
        """Forgets the pages in blocks that get new content, and notes how many blocks a step takes."""
        if not written:
            return
        self._moved += len(written)
        self._most_taken = max(len(written), self._most_taken - self._most_taken // _DECAY)
        dropped = [page for block in written if (page := self._pages.pop(block, None)) is not None]
        lost = sum(self._content_of(page.blocks) != page.content for page in dropped)
        if lost:
            self._counters.add("unstored_pages", lost)

    def _leaving(self) -> Iterator[_Page]:
        """Yields the pages that the next steps may evict, if the next step may take blocks that were not looked up.

        Twice the blocks that a step can compute are looked up, and as many as a step has taken: loads take more.
        """
        if not self._moved or self._looked_up - self._moved >= self._step_blocks + self._most_taken:
            return
        self._moved = self._looked_up = 0
        for block in islice(self._blocks.free(), 2 * self._step_blocks + self._most_taken):
            self._looked_up += 1
            page = self._pages.pop(block, None)
            if page is not None and self._content_of(page.blocks) == page.content:
                yield page


def gpu_pages_of(config: Any, groups: Any, pool: Any, counters: ConnectorCounters) -> GpuPages | None:
    """Returns the pages of vLLM's own cache, or None after a log line if stores cannot wait until they leave it.

    Args:
        config: vLLM's VllmConfig.
        groups: vLLM's KVCacheConfig.
        pool: vLLM's BlockPool; None if vLLM did not offer it.
        counters: The counters of the scheduler's half.
    """
    if reason := _obstacle(config, groups, pool):
        log.warning('pagetier stores pages when they are computed, and not "on_eviction": %s', reason)
        return None
    page_tokens = kind_of(groups.kv_cache_groups[0].kv_cache_spec).page_tokens
    return GpuPages(BlockPoolView(pool), -(-config.scheduler_config.max_num_batched_tokens // page_tokens), counters)


def _resumed(tracked: Mapping[str, RequestState], output: Any) -> Iterator[RequestState]:
    """Yields the requests that are computed again after a preemption, in other blocks."""
    for name in output.scheduled_cached_reqs.resumed_req_ids & tracked.keys():
        yield tracked[name]
    for new in output.scheduled_new_reqs:  # with model runner V2 it is one of these
        if (one := tracked.get(new.req_id)) is not None and one.request.num_preemptions:
            yield one


def _obstacle(config: Any, groups: Any, pool: Any) -> str:
    """Returns why stores cannot wait, or an empty text."""
    specs = [group.kv_cache_spec for group in groups.kv_cache_groups]
    events, transfer = getattr(config, "kv_events_config", None), config.kv_transfer_config
    if len(specs) != 1 or not isinstance(kind_of(specs[0]), FullAttention):
        return "the model has layers without full attention"
    if not hasattr(getattr(pool, "free_block_queue", None), "fake_free_list_head"):
        return "this vLLM does not show its free blocks to connectors"
    if not getattr(pool, "enable_caching", True):
        return "vLLM's own prefix caching is off"
    if events is not None and events.enable_kv_cache_events:
        return "KV cache events are enabled"
    beside = (getattr(transfer, "kv_connector_extra_config", None) or {}).get("mode", "both") != "both"
    if beside or not (transfer.is_kv_producer and transfer.is_kv_consumer):
        return 'another engine needs the pages: kv_role is not "kv_both", or mode not "both"'
    return ""


def _commands_of(pages: Iterable[_Page]) -> Iterator[StoreCommand]:
    """Yields a command for each sequence of consecutive pages, those nearest to the head of their prompt first."""
    sequences: list[list[_Page]] = []
    ends: dict[bytes, list[_Page]] = {}
    distinct = {page.key: page for page in pages}
    for page in sorted(distinct.values(), key=lambda one: one.at):
        sequence = ends.pop(page.before, None)
        if sequence is None:
            sequences.append(sequence := [])
        sequence.append(page)
        ends[page.key] = sequence
    yield from map(_command_of, sequences)


def _command_of(sequence: list[_Page]) -> StoreCommand:
    first = sequence[0]
    keys, blocks = b"".join(page.key for page in sequence), tuple(block for page in sequence for block in page.blocks)
    return StoreCommand("", 0, first.at, keys, blocks, first.salt, before=first.before)


def _rest_of(command: StoreCommand, pages: int) -> StoreCommand:
    """Returns a command without its first pages."""
    if not pages:
        return command
    return msgspec.structs.replace(
        command,
        first=command.first + pages,
        keys=PAGE_KEYS.part(command.keys, pages, command.pages),
        blocks=command.blocks[pages * len(command.blocks) // command.pages :],
        before=PAGE_KEYS.part(command.keys, pages - 1, pages),
    )
