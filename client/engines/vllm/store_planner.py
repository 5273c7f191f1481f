"""Chooses the blocks that are stored in a step: those whose page becomes complete in it. Every vLLM store begins here.

This is the only time at which the request certainly still has them. A store passes through these steps:

1. `store_commands` plans it in the step that completes the page, before that step is computed.
2. `WorkerHalf.store` hands it to the copier after the step was given to the engine's stream, with an event behind it.
3. The copier reserves frames, copies after the event, and publishes the page (`client/async_copy`).
4. A later step that needs the block names it in `StepCommands.written`. `WorkerHalf.end_overwritten_stores` waits for
   the store or cancels it before the step is computed. So no block has to be kept, but for late stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pagetier.client.engines.vllm.messages import StoreCommand
from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.groups import FullAttention
from pagetier.client.keys import Keys
from pagetier.shm.page_rows import PAGE_KEYS


def take_blocks(tracked: Mapping[str, RequestState], output: Any) -> set[int]:
    """Records the blocks that requests got in this step. Returns all blocks that get new content, of any request."""
    _exclude_unproven(tracked, output)
    written: set[int] = set()
    for new in output.scheduled_new_reqs:
        written.update(_fresh(new, tracked.get(new.req_id)))
    return (written | take_more_blocks(tracked, output)) - {0}


def take_more_blocks(tracked: Mapping[str, RequestState], output: Any) -> set[int]:
    """Does what take_blocks() does, in a step without requests that were not computed in the step before."""
    written: set[int] = set()
    cached = output.scheduled_cached_reqs
    if any(cached.new_block_ids):  # in most steps no request gets a block
        for request, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if blocks is not None:
                written.update(*blocks)
                if (one := tracked.get(request)) is not None:
                    one.extend_tables(blocks, resumed=request in cached.resumed_req_ids)
    written.update(getattr(output, "new_block_ids_to_zero", None) or ())
    written.update(copy.dst_block_id for copy in getattr(output, "kv_cache_block_copies", None) or ())
    return written - {0}


def blocks_of_others(
    tracked: Mapping[str, RequestState], given: Mapping[str, Sequence[Sequence[Any]]], output: Any
) -> Iterator[int]:
    """Yields the blocks into which a connector beside pagetier may load from this step on.

    They are those of requests that are not computed in this step, or that have more tokens than vLLM had itself.

    Args:
        tracked: The requests.
        given: By request, a row of blocks for each of vLLM's groups: of requests that were not computed before.
        output: vLLM's SchedulerOutput.
    """
    for name, rows in given.items():
        one = tracked.get(name)
        if one is None or (name in output.num_scheduled_tokens and one.request.num_computed_tokens <= one.computed):
            continue
        for number, row in enumerate(rows):
            first = one.first_block_after(number, one.computed)
            yield from (int(block.block_id) for block in row[first:] if not block.is_null)


def _exclude_unproven(tracked: Mapping[str, RequestState], output: Any) -> None:
    """Stops storing requests for which another connector loads tokens in the step that computes others of them.

    vLLM learns only after the step that such a load has failed, when its pages would have been stored. Loads that end
    before the request is computed are reported, and what failed is computed again. From 0.30 on, vLLM says whether a
    step has such a load. Without one, a request has more tokens than vLLM has said because its own hit ends within a
    block.
    """
    loads = getattr(output, "has_sync_kv_loads", True)
    for name in output.num_scheduled_tokens:
        one = tracked.get(name)
        if one is not None and one.is_new:  # only the first step of a request can follow a load
            # vLLM keeps no room for its failed load any more, if it should preempt it.
            one.is_new = one.has_failed = False
            if loads and one.request.num_computed_tokens > one.computed:
                one.exclude()


def store_commands(tracked: Mapping[str, RequestState], output: Any) -> Iterator[StoreCommand]:
    """Yields the store commands of all requests that are computed in this step."""
    drafts = output.scheduled_spec_decode_tokens
    offers = offers_of(output)
    for request, tokens in output.num_scheduled_tokens.items():
        one = tracked.get(request)
        if one is not None:
            begins, guessed = one.request.num_computed_tokens, len(drafts.get(request, ()))
            # With drafts, the state at the end of a step is in a separate block until they are accepted.
            offered = offers.get(request, () if guessed else None)
            ends = begins + tokens - guessed
            if offered or not one.completes_no_page(begins, ends):
                yield from _commands_of(one, begins, ends, offered)
                one.mark_planned(ends)


def late_store_commands(tracked: RequestState, tables: Sequence[Sequence[int]]) -> list[StoreCommand]:
    """Returns the commands for pages that had no keys before their request ended.

    Args:
        tracked: The request.
        tables: For each of vLLM's groups the blocks that it still has.
    """
    request = tracked.request
    if tracked.loading or tracked.is_new:  # nothing was computed, and another connector may not have ended its load
        return []
    # The last token was sampled and never computed, so that it has no state.
    ends = min(request.num_computed_tokens, request.num_tokens - 1)
    tracked.set_tables(tables)  # vLLM may have freed blocks of windows since the last step
    commands: list[StoreCommand] = []
    for at, group in enumerate(tracked.groups):
        if group.has_every_page:
            # The next step sends these commands, and may give the blocks to another request itself.
            commands.extend(_pages(tracked, at, tracked.stored[at], ends, retains_blocks=True))
    return commands


def _commands_of(one: RequestState, begins: int, ends: int, offers: Sequence[Any] | None) -> Iterator[StoreCommand]:
    for at, group in enumerate(one.groups):
        if group.has_every_page:
            # vLLM has freed the blocks before: a step behind a window needs none of them.
            kept = group.first_whole(begins)
            stable = group.stable(ends, one.request.num_prompt_tokens)
            yield from _pages(one, at, max(one.stored[at], kept), stable)
        elif offers is not None:
            yield from _offered(one, at, offers)
        else:
            yield from _snapshot(one, at, ends)


def _pages(
    one: RequestState, at: int, first: int, ends: int, *, retains_blocks: bool = False
) -> Iterator[StoreCommand]:
    """Yields the pages from `first` on that are complete at `ends` tokens."""
    group, table, keys = one.groups[at], one.tables[at], one.keys[at]
    last = min(ends // group.kind.page_tokens, len(keys), len(table) // group.blocks)
    if last <= first:
        return
    if isinstance(group.kind, FullAttention):
        blocks = tuple(table[first * group.blocks : last * group.blocks])
    else:
        blocks = tuple(block for page in range(first, last) for block in _useful_blocks(one, at, page))
    one.stored[at] = last  # also if no page is useful, so that none of them is looked at again
    if any(blocks):
        yield _command(one, at, first, keys, blocks, retains_blocks=retains_blocks)


def _useful_blocks(one: RequestState, at: int, page: int) -> Sequence[int]:
    """Returns the blocks of a page that are copied; 0 for each if no hit needs it, or vLLM has freed one of them."""
    group = one.groups[at]
    blocks = group.blocks_of(one.tables[at], page)
    return blocks if group.is_useful(page, one.grain) and all(blocks) else (0,) * len(blocks)


def _command(
    one: RequestState, at: int, first: int, keys: Keys, blocks: tuple[int, ...], *, retains_blocks: bool = False
) -> StoreCommand:
    """Returns the command for the pages from `first` on. `keys` are those of all pages."""
    group = one.groups[at]
    before = PAGE_KEYS.part(keys.data, max(0, first - 1), first) if isinstance(group.kind, FullAttention) else None
    data, salt = PAGE_KEYS.part(keys.data, first, first + len(blocks) // group.blocks), keys.namespace.salt
    return StoreCommand(one.request.request_id, at, first, data, blocks, salt, retains_blocks, before=before)


def _snapshot(one: RequestState, at: int, ends: int) -> Iterator[StoreCommand]:
    """Yields the state at the end of a step, if it is the end of a page: a state is never complete elsewhere."""
    tokens = one.groups[at].kind.page_tokens
    if ends % tokens == 0:
        yield from _pages(one, at, ends // tokens - 1, ends)


def offers_of(output: Any) -> Mapping[str, Sequence[Any]]:
    """Returns the states that vLLM offers to store, by request: (group, block, tokens before it). From 0.30 on."""
    state = getattr(output, "kv_connector_block_state", None)
    return state.boundary_state_offloads if state is not None else {}


def _offered(one: RequestState, at: int, offers: Sequence[Any]) -> Iterator[StoreCommand]:
    tokens, keys = one.groups[at].kind.page_tokens, one.keys[at]
    for group, block, boundary in offers:
        page = boundary // tokens - 1
        if group == one.groups[at].number and block and boundary % tokens == 0 and one.stored[at] <= page < len(keys):
            yield _command(one, at, page, keys, (block,))


def _fresh(new: Any, one: RequestState | None) -> Iterator[int]:
    """Yields the blocks of a new request without its computed prefix; all blocks if the request is not tracked."""
    if one is not None:
        one.set_tables(new.block_ids)
    for number, table in enumerate(new.block_ids):
        first = one.first_block_after(number, new.num_computed_tokens) if one is not None else 0
        yield from table[first:]
