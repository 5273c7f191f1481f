"""A model of a copy between an engine's cache and pages in plain torch indexing, and random copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from engine_caches import EngineCache
from pagetier.kernels.layout.frames import Arena, Frames, frames_of
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import SlotMap, joined_slots, slot_map

GUARD = 4096


class Request(msgspec.Struct, frozen=True):
    """Some pages: the position of the first one in the block table, the tokens to copy, and the pages to skip."""

    table: tuple[int, ...]
    count: int
    position: int
    tokens: range
    skip: tuple[bool, ...] | None

    def places(self, page: int, page_tokens: int, block_tokens: int) -> tuple[Any, Any, Any]:
        """Returns which tokens of the page are copied, and the block and the place in the block of each."""
        tokens = torch.arange(page_tokens)
        at = self.position + page * page_tokens + tokens
        wanted = (at >= self.tokens.start) & (at < self.tokens.stop) & (not (self.skip and self.skip[page]))
        at = at[wanted]
        return tokens[wanted], torch.tensor(self.table, dtype=torch.int64)[at // block_tokens], at % block_tokens


class Job(msgspec.Struct, frozen=True):
    """The requests of one copy."""

    page_tokens: int
    block_tokens: int
    requests: tuple[Request, ...]

    @property
    def pages(self) -> int:
        """The number of pages of all requests."""
        return sum(request.count for request in self.requests)

    @property
    def blocks(self) -> int:
        """The number of blocks that a cache needs."""
        return max((max(request.table) for request in self.requests if request.table), default=0) + 1

    def slots(self) -> SlotMap:
        """Returns the slot map of the copy."""
        maps = []
        for one in self.requests:
            its = slot_map(one.table, one.count, self.page_tokens, self.block_tokens, one.position, one.tokens)
            maps.append(its if one.skip is None else its.without(one.skip))
        return joined_slots(*maps)

    def places(self, pages: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
        """Yields Request.places for each page of which tokens are copied."""
        at = iter(pages)
        for request in self.requests:
            for page in range(request.count):
                places, its = request.places(page, self.page_tokens, self.block_tokens), next(at)
                if len(places[0]):
                    yield its, *places


@st.composite
def _requests(draw: Any, page_tokens: int, block_tokens: int) -> Request:
    """Draws a request whose block table is numbered from 0."""
    count, position = draw(st.integers(0, 3)), draw(st.integers(1 - page_tokens, 2 * block_tokens))
    end = position + count * page_tokens
    first = max(0, min(position, end))
    tokens = range(*sorted(draw(st.tuples(*[st.integers(first, max(first, end))] * 2))))
    if draw(st.booleans()):
        tokens = range(first, max(first, end))
    skip = draw(st.none() | st.lists(st.booleans(), min_size=count, max_size=count).map(tuple))
    return Request(tuple(range(-(-max(0, end) // block_tokens))), count, position, tokens, skip)


@st.composite
def jobs(draw: Any, page_tokens: int | None = None, block_tokens: int | None = None) -> Job:
    """Draws requests in random blocks, without two tokens in one place."""
    page_tokens = draw(st.integers(1, 9)) if page_tokens is None else page_tokens
    block_tokens = draw(st.integers(1, 7)) if block_tokens is None else block_tokens
    requests = draw(st.lists(_requests(page_tokens, block_tokens), min_size=1, max_size=3))
    needed = sum(len(request.table) for request in requests)
    blocks = iter(draw(st.permutations(range(needed + 2))))
    placed = (msgspec.structs.replace(one, table=tuple(next(blocks) for _ in one.table)) for one in requests)
    return Job(page_tokens, block_tokens, tuple(placed))


class Pages:
    """Memory for the pages of a copy, with frames at random places, between guard zones."""

    def __init__(self, count: int, page_bytes: int, frame_bytes: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        each = -(-page_bytes // frame_bytes)
        frames = count * each + 3
        self.memory = torch.from_numpy(rng.integers(0, 256, GUARD + frames * frame_bytes + GUARD, np.uint8))
        self.arena = Arena(self.memory.data_ptr() + GUARD, frames * frame_bytes, frame_bytes, self.memory)
        self.table = rng.permutation(frames)[: count * each].reshape(count, each)

    @property
    def frames(self) -> Frames:
        """Returns the frames of the copy."""
        return frames_of(self.arena, self.table)

    def of(self, memory: Any) -> Any:
        """Returns the bytes of each page, if the memory has this content."""
        return self._in_frames(memory)[torch.from_numpy(self.table)].flatten(1)

    def put(self, memory: Any, pages: Any) -> None:
        """Copies pages into their frames."""
        self._in_frames(memory)[torch.from_numpy(self.table)] = pages.view(*self.table.shape, self.arena.frame_bytes)

    def _in_frames(self, memory: Any) -> Any:
        return memory[GUARD:-GUARD].view(-1, self.arena.frame_bytes)


def stored(job: Job, cache: EngineCache, page_layout: PageLayout, pages: Pages) -> Any:
    """Returns the expected memory of the pages after a store."""
    memory = pages.memory.clone()
    after = pages.of(memory)
    for page, tokens, blocks, slots in job.places(after):
        for plane, rows in _planes(page, cache.planes, page_layout):
            found = plane[blocks, slots].permute(1, 0, 2).contiguous().view(torch.uint8)
            rows[:, tokens] = found.view(*rows.shape[:1], len(tokens), rows.shape[2])
    pages.put(memory, after)
    return memory


def load_plainly(job: Job, cache: EngineCache, page_layout: PageLayout, pages: Pages) -> None:
    """Changes the cache as a load should."""
    for page, tokens, blocks, slots in job.places(pages.of(pages.memory)):
        for plane, rows in _planes(page, cache.planes, page_layout):
            values = rows[:, tokens].permute(1, 0, 2).contiguous().view(plane.dtype)
            plane[blocks, slots] = values.view(len(tokens), *plane.shape[2:])


def _planes(page: Any, planes: Sequence[Sequence[Any]], page_layout: PageLayout) -> Iterator[tuple[Any, Any]]:
    """Yields each plane of a cache, and its bytes in a page as [heads, tokens, width]."""
    for layer, offsets in zip(planes, page_layout.offsets, strict=True):
        for plane, offset in zip(layer, offsets, strict=True):
            heads, width = plane.shape[2], plane.shape[3] * plane.dtype.itemsize
            yield (
                plane,
                page[offset : offset + heads * page_layout.tokens * width].view(heads, page_layout.tokens, width),
            )
