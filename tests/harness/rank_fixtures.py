"""A model whose state is a function of the prompt, and ranks of engines with caches of different layouts."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client import Blocks, Client, Keys, Namespace
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import CacheLayout
from pagetier.kernels.layout.page_layout import PageLayout, Shard
from pagetier.kernels.layout.slot_map import SlotMap, slot_map
from pagetier.kernels.layout.transfer import PagedCache

PAGE_TOKENS, PAGES, BLOCKS, POISON = 12, 3, 40, 0xDEAD
START_S = 30.0
State = npt.NDArray[np.uint16]


class Model(msgspec.Struct, frozen=True):
    """A model with state [layers, planes, heads, tokens, dim]; one plane is a latent, two planes are K and V."""

    name: str
    layers: int
    planes: int
    heads: int
    dim: int

    def state(self, prompt: int) -> State:
        """Returns the state of all tokens of a prompt. No element is POISON."""
        shape = (self.layers, self.planes, self.heads, PAGE_TOKENS * PAGES, self.dim)
        return np.random.default_rng([prompt, self.layers]).integers(0, POISON, shape, dtype=np.uint16)


class Cache(msgspec.Struct, frozen=True, eq=False):
    """A cache. `raw` is all of its memory; `rows` are views of it, [layer][plane], [blocks, tokens, heads, dim]."""

    raw: list[State]
    rows: list[list[State]]
    layout: CacheLayout


def _poisoned(*shape: int) -> State:
    return np.full(shape, POISON, np.uint16)


def _kv_first(layers: int, heads: int, dim: int) -> Cache:
    raw = [_poisoned(2, BLOCKS, 8, heads, dim) for _ in range(layers)]
    return Cache(raw, [[one[0], one[1]] for one in raw], engine_layouts.kv_first(raw))


def _kv_second(layers: int, heads: int, dim: int) -> Cache:
    raw = [_poisoned(BLOCKS, 2, 5, heads, dim) for _ in range(layers)]
    return Cache(raw, [[one[:, 0], one[:, 1]] for one in raw], engine_layouts.kv_second(raw))


def _vllm(layers: int, heads: int, dim: int) -> Cache:
    """Returns a cache with blocks outermost, then heads, then layers."""
    raw = _poisoned(BLOCKS, heads, layers, 16, 2 * dim)
    views = [raw[:, :, layer] for layer in range(layers)]
    rows = [view.transpose(0, 2, 1, 3) for view in views]
    return Cache([raw], [[row[..., :dim], row[..., dim:]] for row in rows], engine_layouts.vllm(views))


def _token_slots(layers: int, heads: int, dim: int) -> Cache:
    raw = _poisoned(layers, 4 * BLOCKS, 2 * heads, dim)
    rows = [[one[:, None, :heads], one[:, None, heads:]] for one in raw]
    return Cache([raw], rows, engine_layouts.token_slots(raw))


def _latents(layers: int, heads: int, dim: int) -> Cache:
    assert heads == 1
    raw = [_poisoned(BLOCKS, 4, dim) for _ in range(layers)]
    return Cache(raw, [[one[:, :, None]] for one in raw], engine_layouts.latents(raw))


class Group(msgspec.Struct, frozen=True):
    """The ranks of one engine."""

    ranks: int
    stages: int = 1

    @property
    def shards(self) -> list[tuple[int, int]]:
        """Returns (stage, rank) of each process."""
        return [(stage, rank) for stage in range(self.stages) for rank in range(self.ranks)]


_BUILDERS: dict[Group, Callable[[int, int, int], Cache]] = {
    Group(1): _kv_first,
    Group(2): _kv_second,
    Group(4): _vllm,
    Group(8): _token_slots,
    Group(2, 2): _vllm,
}
GROUPS = list(_BUILDERS)
MODELS = [Model("gqa", 4, 2, 4, 24), Model("mha", 2, 2, 8, 7), Model("mla", 2, 1, 1, 36)]


class Rank:
    """One process of an engine: its part of a model, in a cache with its group's layout."""

    def __init__(self, model: Model, group: Group, stage: int, rank: int) -> None:
        layers = model.layers // group.stages
        self._layers = range(stage * layers, (stage + 1) * layers)
        self._heads = Shard(rank=rank, ranks=group.ranks).heads(model.heads)
        self._model, self._group = model, group
        build = _latents if model.planes == 1 else _BUILDERS[group]
        self.cache = build(layers, self._heads.count, model.dim)
        page_layout = PageLayout.of_model(self.cache.layout, PAGE_TOKENS, model.heads, model.layers)
        shard = Shard(rank, group.ranks, stage, (layers,) * group.stages)
        self.paged = PagedCache(self.cache.layout, page_layout, shard)

    def keys(self, prompt: int) -> Keys:
        """Returns the same keys for each group: the namespace depends on the page layout, but not on the rank."""
        space = Namespace(
            model=self._model.name, dtype="uint16", page_tokens=PAGE_TOKENS, layout=self.paged.page.layout
        )
        return space.keys(range(prompt << 16, (prompt << 16) + PAGE_TOKENS * PAGES))

    def slots(self, seed: int) -> SlotMap:
        """Returns the slots of all pages, in random blocks."""
        size = self.cache.layout.block_tokens
        count = -(-PAGE_TOKENS * PAGES // size)
        blocks = np.random.default_rng(seed).permutation(self.cache.layout.blocks)[:count]
        return slot_map(blocks, PAGES, PAGE_TOKENS, size)

    def fill(self, prompt: int, slots: SlotMap) -> None:
        """Writes the state of a prompt, as if the engine had computed it."""
        for rows, share in zip(self.cache.rows, self._share(prompt), strict=True):
            for plane, state in zip(rows, share, strict=True):
                block, token = self._places(slots)
                plane[block, token] = state.swapaxes(0, 1)

    def wrong(self, prompt: int, slots: SlotMap) -> int:
        """Returns the number of wrong elements in all of its memory, if only these slots were loaded."""
        expected = Rank._copy(self)
        expected.fill(prompt, slots)
        pairs = zip(self.cache.raw, expected.cache.raw, strict=True)
        return sum(int((mine != its).sum()) for mine, its in pairs)

    def clear(self) -> None:
        """Poisons all memory."""
        for raw in self.cache.raw:
            raw[...] = POISON

    def _copy(self) -> Rank:
        return Rank(self._model, self._group, self.paged.shard.stage, self.paged.shard.rank)

    def _share(self, prompt: int) -> State:
        first = self._heads.first
        return self._model.state(prompt)[self._layers.start : self._layers.stop, :, first : first + self._heads.count]

    def _places(self, slots: SlotMap) -> Any:
        tokens = np.arange(PAGE_TOKENS * PAGES)
        return slots.blocks[tokens // slots.block_tokens], tokens % slots.block_tokens


def serve_rank(socket: Path, group: Group, stage: int, rank: int, pipe: Connection) -> None:
    """Executes ("store" or "load", model, prompt) commands. Sends the outcomes, or the pages and wrong elements."""
    ranks = [Rank(model, group, stage, rank) for model in MODELS]
    with Client(socket, timeout=START_S) as client:
        assert client.wait_attached(START_S)
        pipe.send("attached")
        while (command := pipe.recv()) is not None:
            what, model, prompt = command
            pipe.send({"store": _store, "load": _load}[what](client, ranks[model], prompt))


def _store(client: Client, rank: Rank, prompt: int) -> list[str]:
    slots = rank.slots(prompt)
    rank.clear()
    rank.fill(prompt, slots)
    return [outcome.name for outcome in client.store(rank.keys(prompt), Blocks(rank.paged, slots)).outcomes]


def _load(client: Client, rank: Rank, prompt: int) -> tuple[int, int]:
    slots = rank.slots(prompt + 1000)
    rank.clear()
    with client.match(rank.keys(prompt)) as match:
        return client.load(match, Blocks(rank.paged, slots)), rank.wrong(prompt, slots)
