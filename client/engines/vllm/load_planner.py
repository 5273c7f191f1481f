"""Chooses the blocks into which the pages of a hit are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pagetier.client.engines.vllm.messages import GroupLoad, LoadCommand
from pagetier.client.engines.vllm.request_state import PinnedHit, RequestState
from pagetier.client.match import Match, MatchHandle


def load_command(
    tracked: RequestState, found: PinnedHit, blocks: Sequence[Sequence[Any]], external: int
) -> LoadCommand:
    """Returns the load of all offered tokens.

    If vLLM takes only some of them, the load has no pages and therefore fails.

    Args:
        tracked: The request.
        found: Its pinned pages.
        blocks: A row of vLLM's blocks for each group.
        external: The number of tokens that vLLM takes.
    """
    taken = external == tracked.offered
    loads = []
    matches = zip(tracked.groups, found.match.matches, found.match.start_pages, strict=False)  # these groups come first
    for at, (group, match, start) in enumerate(matches):
        first = start + found.begins // group.kind.page_tokens
        targets = blocks[at % len(blocks)][first : first + len(match)]
        places = [place for place, block in enumerate(targets) if not block.is_null and block.block_hash is None]
        ids = tuple(int(targets[place].block_id) for place in places)
        loads.append(GroupLoad(at, handle_of(match, places if taken else ()), ids))
    return LoadCommand(tracked.request.request_id, tuple(load for load in loads if load.blocks))


def handle_of(match: Match, pages: Sequence[int]) -> MatchHandle:
    """Returns a handle of some pages of a match, given by their indexes in it."""
    whole = match.to_handle()
    if not len(whole):
        return whole
    entries = np.frombuffer(whole.entries, np.uint32)[list(pages)]
    serials = np.frombuffer(whole.serials, np.uint64)[list(pages)]
    return MatchHandle(whole.segments_id, whole.page_tokens, entries.tobytes(), serials.tobytes())
