"""A page shared by any number of ranks: a model's state, ranks with their caches, and frames in another order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.kernels.host.copy import gather
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import CacheLayout
from pagetier.kernels.layout.frames import Arena, Frames, frames_of
from pagetier.kernels.layout.page_layout import PageLayout, Shard
from pagetier.kernels.layout.slot_map import SlotMap, slot_map
from pagetier.kernels.layout.transfer import PagedCache, Transfer

Bytes = npt.NDArray[np.uint8]
State = npt.NDArray[np.uint16]
BLOCKS, BLOCK_TOKENS, FRAME = 9, 3, 64
POISON = 0xDEAD


class Model(msgspec.Struct, frozen=True, eq=False):
    """The state of one page: [layers, kinds, heads, tokens, elements]."""

    state: State
    page_layout: PageLayout

    @property
    def page(self) -> Bytes:
        """Returns the bytes of the whole page, 0 between planes."""
        page = np.zeros(self.page_layout.nbytes, np.uint8)
        for layer, offsets in enumerate(self.page_layout.offsets):
            for kind, offset in enumerate(offsets):
                plane = self.state[layer, kind].tobytes()
                page[offset : offset + len(plane)] = np.frombuffer(plane, np.uint8)
        return page

    @property
    def covered(self) -> npt.NDArray[np.bool_]:
        """Returns for each byte of a page whether it belongs to a plane."""
        ones = msgspec.structs.replace(self, state=np.full_like(self.state, 0xFFFF))
        return ones.page > 0


class Rank(msgspec.Struct, frozen=True, eq=False):
    """A rank. `rows` are views of its memory: [layer][kind], [blocks, tokens, heads, elements].

    `part` is its part of the model.
    """

    memory: list[State]
    rows: list[list[State]]
    paged: PagedCache
    part: tuple[slice, slice, slice]

    def write(self, model: Model, table: Sequence[int], tokens: range) -> None:
        """Writes the state of these tokens, as if the engine had computed them."""
        its = model.state[self.part]
        for rows, layer in zip(self.rows, its, strict=True):
            for plane, state in zip(rows, layer, strict=True):
                for token in tokens:
                    plane[table[token // BLOCK_TOKENS], token % BLOCK_TOKENS] = state[:, token]


def _poisoned(*shape: int) -> State:
    return np.full(shape, POISON, np.uint16)


def separate_memory(layers: int, heads: int, width: int) -> tuple[list[State], list[list[State]], CacheLayout]:
    """Returns memory with heads before tokens."""
    raw = [_poisoned(BLOCKS, heads, BLOCK_TOKENS, width) for _ in range(2 * layers)]
    views = [one.swapaxes(1, 2) for one in raw]
    cache = engine_layouts.separate_blocks(views[::2], views[1::2])
    return raw, [[k, v] for k, v in zip(views[::2], views[1::2], strict=True)], cache


def joint_memory(layers: int, heads: int, width: int) -> tuple[list[State], list[list[State]], CacheLayout]:
    """Returns memory with blocks outermost, then heads, then layers."""
    raw = _poisoned(BLOCKS, heads, layers, BLOCK_TOKENS, 2 * width)
    tensors = [raw[:, :, layer] for layer in range(layers)]
    rows = [[t.swapaxes(1, 2)[..., :width], t.swapaxes(1, 2)[..., width:]] for t in tensors]
    return [raw], rows, engine_layouts.vllm(tensors)


def latent_memory(layers: int, heads: int, width: int) -> tuple[list[State], list[list[State]], CacheLayout]:
    assert heads == 1
    raw = [_poisoned(BLOCKS, BLOCK_TOKENS, width) for _ in range(layers)]
    return raw, [[one[:, :, None]] for one in raw], engine_layouts.latents(raw)


Make = Callable[[int, int, int], tuple[list[State], list[list[State]], CacheLayout]]


class Group(msgspec.Struct, frozen=True):
    """The ranks of an engine, and the layout of its caches."""

    ranks: int
    stages: int
    make: Make

    def __str__(self) -> str:
        return f"{self.ranks}x{self.stages}"

    def of(self, model: Model, tokens: int) -> list[Rank]:
        """Returns all ranks, with poisoned caches."""
        return [self._rank(model, tokens, stage, rank) for stage in range(self.stages) for rank in range(self.ranks)]

    def _rank(self, model: Model, tokens: int, stage: int, rank: int) -> Rank:
        all_layers, _, all_heads, _, width = model.state.shape
        layers, heads = all_layers // self.stages, max(1, all_heads // self.ranks)
        first = rank * all_heads // self.ranks
        memory, rows, cache = self.make(layers, heads, width)
        page_layout = PageLayout.of_model(cache, tokens, all_heads, all_layers)
        assert page_layout.layout == model.page_layout.layout
        shard = Shard(rank, self.ranks, stage, (layers,) * self.stages)
        part = (slice(stage * layers, (stage + 1) * layers), slice(None), slice(first, first + heads))
        return Rank(memory, rows, PagedCache(cache, page_layout, shard), part)


def model_of(heads: int, tokens: int, kinds: int = 2, width: int = 5) -> Model:
    """Returns a model of two layers. No element is POISON."""
    state = np.random.default_rng([heads, tokens]).integers(0, POISON, (2, kinds, heads, tokens, width), np.uint16)
    make = separate_memory if kinds == 2 else latent_memory
    return Model(state, PageLayout.of(make(2, heads, width)[2], tokens))


class Page:
    """Memory for one page whose frames are not in order, filled with one byte."""

    def __init__(self, nbytes: int, fill: int) -> None:
        count = -(-nbytes // FRAME) + 2
        self._memory = np.full((count, FRAME), fill, np.uint8)
        self._chain = np.random.default_rng(nbytes).permutation(count)[: count - 2]
        self._nbytes = nbytes
        arena = Arena(self._memory.ctypes.data, self._memory.nbytes, FRAME, self._memory)
        self.frames: Frames = frames_of(arena, self._chain[None])

    @property
    def bytes(self) -> Bytes:
        """Returns the bytes of the page."""
        return self._memory[self._chain].reshape(-1)[: self._nbytes]

    def put(self, page: Bytes) -> None:
        """Copies the bytes of a page into its frames."""
        padded = np.zeros(len(self._chain) * FRAME, np.uint8)
        padded[: len(page)] = page
        self._memory[self._chain] = padded.reshape(-1, FRAME)


def written(transfers: Sequence[Transfer], nbytes: int) -> npt.NDArray[np.int64]:
    """Returns how often each byte of the page is written."""
    times = np.zeros(nbytes, np.int64)
    for transfer in transfers:
        dark, light = Page(nbytes, 0), Page(nbytes, 0xFF)
        for page in (dark, light):
            gather(transfer, page.frames)
        times += (dark.bytes != 0) | (light.bytes != 0xFF)
    return times


def slots_of(seed: int, page_tokens: int, tokens: range | None = None) -> tuple[list[int], SlotMap]:
    """Returns one page in random blocks."""
    table = np.random.default_rng(seed).permutation(BLOCKS)[: -(-page_tokens // BLOCK_TOKENS)].tolist()
    return table, slot_map(table, 1, page_tokens, BLOCK_TOKENS, tokens=tokens)
