"""Chooses the blocks into which the pages of a hit are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pagetier.client.engines.vllm.messages import GroupLoad, LoadCommand
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.request_state import PinnedHit, RequestState
from pagetier.client.match import Match, MatchHandle
from pagetier.shm.row_arrays import entries_of, serials_of


def load_command(
    tracked: RequestState, found: PinnedHit, blocks: Sequence[Sequence[Any]], external: int
) -> LoadCommand:
    """Returns the load of all offered tokens.

    If vLLM takes only some of them, the load has no pages and therefore fails. Of a page whose first blocks vLLM has in
    its own cache, only the others are written.

    Args:
        tracked: The request.
        found: Its pinned pages.
        blocks: A row of blocks for each of vLLM's groups.
        external: The number of tokens that vLLM takes.
    """
    loads = []
    taken = external == tracked.offered
    matches = zip(tracked.groups, found.match.matches, found.match.start_pages, strict=False)  # these groups come first
    for at, (group, match, start) in enumerate(matches):
        first = start + found.begins // group.kind.page_tokens
        rows = [_targets(group, blocks[group.number], page) for page in range(first, first + len(match))]
        places = [place for place, row in enumerate(rows) if any(row)]
        ids = tuple(block for place in places for block in rows[place])
        begin_only = all(_at_begin_only(rows[place]) for place in places)
        loads.append(GroupLoad(at, handle_of(match, places if taken and begin_only else ()), ids))
    return LoadCommand(tracked.request.request_id, tuple(load for load in loads if load.blocks))


def _targets(group: PagedGroup, table: Sequence[Any], page: int) -> list[int]:
    """Returns the blocks of a page, 0 for each that is not written: it has content, or vLLM does not need it."""
    blocks = group.blocks_of(table, page)
    ids = [0 if block.is_null or block.block_hash is not None else int(block.block_id) for block in blocks]
    return ids + [0] * (group.blocks - len(ids))


def _at_begin_only(blocks: Sequence[int]) -> bool:
    """Returns whether all blocks 0 come first: vLLM has a prefix of a page, or needs the end of it for a window."""
    return not any(before and not after for before, after in pairwise(blocks))


def handle_of(match: Match, pages: Sequence[int]) -> MatchHandle:
    """Returns a handle of some pages of a match, given by their indexes in it."""
    whole = match.to_handle()
    if not len(whole):
        return whole
    entries, serials = entries_of(whole.entries)[list(pages)], serials_of(whole.serials)[list(pages)]
    return MatchHandle(whole.segments_id, whole.page_tokens, entries.tobytes(), serials.tobytes())
