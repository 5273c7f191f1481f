"""Models with known state, the ranks of engines with caches of different layouts, and pages that the ranks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from eventually import PATIENCE_S
from pagetier.client import Client, Keys, Namespace
from pagetier.client.adapters import Blocks
from pagetier.kernels.host.copy import gather
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import CacheLayout
from pagetier.kernels.layout.frames import Arena, Frames, frames_of
from pagetier.kernels.layout.page_layout import PageLayout, Shard
from pagetier.kernels.layout.slot_map import SlotMap, slot_map
from pagetier.kernels.layout.transfer import PagedCache, Transfer

BLOCKS, FRAME, POISON = 40, 64, 0xDEAD
PAGE_TOKENS, PAGES = 12, 3  # of the prompts in processes
Bytes = npt.NDArray[np.uint8]
State = npt.NDArray[np.uint16]


class Model(msgspec.Struct, frozen=True):
    """The sizes of a model's state; one plane is a latent, two planes are K and V."""

    layers: int
    planes: int
    heads: int
    width: int

    def state(self, prompt: int, tokens: int) -> State:
        """Returns the state of a prompt, [layers, planes, heads, tokens, width]. No element is POISON."""
        shape = (self.layers, self.planes, self.heads, tokens, self.width)
        return np.random.default_rng([prompt, self.layers, self.heads]).integers(0, POISON, shape, np.uint16)


class RankCache(msgspec.Struct, frozen=True, eq=False):
    """A cache. `raw` is all of its memory; `rows` are views of it, [layer][plane], [blocks, tokens, heads, width]."""

    raw: list[State]
    rows: list[list[State]]
    layout: CacheLayout


def _poisoned(*shape: int) -> State:
    return np.full(shape, POISON, np.uint16)


def kv_first(layers: int, heads: int, width: int) -> RankCache:
    raw = [_poisoned(2, BLOCKS, 16, heads, width) for _ in range(layers)]
    return RankCache(raw, [[one[0], one[1]] for one in raw], engine_layouts.kv_first(raw))


def kv_second(layers: int, heads: int, width: int) -> RankCache:
    raw = [_poisoned(BLOCKS, 2, 5, heads, width) for _ in range(layers)]
    return RankCache(raw, [[one[:, 0], one[:, 1]] for one in raw], engine_layouts.kv_second(raw))


def vllm(layers: int, heads: int, width: int) -> RankCache:
    """Returns a cache with blocks outermost, then heads, then layers."""
    raw = _poisoned(BLOCKS, heads, layers, 3, 2 * width)
    views = [raw[:, :, layer] for layer in range(layers)]
    rows = [view.swapaxes(1, 2) for view in views]
    return RankCache([raw], [[row[..., :width], row[..., width:]] for row in rows], engine_layouts.vllm(views))


def separate_blocks(layers: int, heads: int, width: int) -> RankCache:
    """Returns a cache with heads before tokens."""
    raw = [_poisoned(BLOCKS, heads, 3, width) for _ in range(2 * layers)]
    keys, values = ([one.swapaxes(1, 2) for one in raw[kind::2]] for kind in range(2))
    return RankCache(raw, [*map(list, zip(keys, values, strict=True))], engine_layouts.separate_blocks(keys, values))


def token_slots(layers: int, heads: int, width: int) -> RankCache:
    raw = _poisoned(layers, 4 * BLOCKS, 2 * heads, width)
    rows = [[one[:, None, :heads], one[:, None, heads:]] for one in raw]
    return RankCache([raw], rows, engine_layouts.token_slots(raw))


def latents(layers: int, heads: int, width: int) -> RankCache:
    assert heads == 1
    raw = [_poisoned(BLOCKS, 4, width) for _ in range(layers)]
    return RankCache(raw, [[one[:, :, None]] for one in raw], engine_layouts.latents(raw))


class Group(msgspec.Struct, frozen=True):
    """The ranks of one engine, and the layout of its caches for models with K and V."""

    ranks: int
    stages: int
    build: Callable[[int, int, int], RankCache]

    def __str__(self) -> str:
        return f"{self.ranks}x{self.stages}"

    @property
    def shards(self) -> list[tuple[int, int]]:
        """Returns (stage, rank) of each process."""
        return [(stage, rank) for stage in range(self.stages) for rank in range(self.ranks)]

    def of(self, model: Model, tokens: int) -> list[Rank]:
        """Returns all ranks, with pages of this length."""
        return [Rank(model, self, stage, rank, tokens) for stage, rank in self.shards]


GROUPS = [Group(1, 1, kv_first), Group(2, 1, kv_second), Group(4, 1, vllm), Group(8, 1, token_slots), Group(2, 2, vllm)]
MODELS = {"gqa": Model(4, 2, 4, 24), "mha": Model(2, 2, 8, 7), "mla": Model(2, 1, 1, 36)}


class Rank:
    """One rank of an engine: its part of a model, in a poisoned cache with its group's layout."""

    def __init__(self, model: Model, group: Group, stage: int, rank: int, tokens: int) -> None:
        layers, heads = model.layers // group.stages, Shard(rank=rank, ranks=group.ranks).heads(model.heads)
        self._arguments = model, group, stage, rank, tokens
        self._part = (
            slice(stage * layers, (stage + 1) * layers),
            slice(None),
            slice(heads.first, heads.first + heads.count),
        )
        self.cache = (latents if model.planes == 1 else group.build)(layers, heads.count, model.width)
        page_layout = PageLayout.of_model(self.cache.layout, tokens, model.heads, model.layers)
        self.paged = PagedCache(
            self.cache.layout, page_layout, Shard(rank, group.ranks, stage, (layers,) * group.stages)
        )

    def slots(self, seed: int, pages: int = 1, tokens: range | None = None) -> SlotMap:
        """Returns the slots of pages in random blocks."""
        layout, page_tokens = self.cache.layout, self.paged.page.tokens
        blocks = np.random.default_rng(seed).permutation(layout.blocks)[
            : -(-page_tokens * pages // layout.block_tokens)
        ]
        return slot_map(blocks, pages, page_tokens, layout.block_tokens, tokens=tokens)

    def fill(self, state: State, slots: SlotMap) -> None:
        """Writes the state of the slots' tokens, as if the engine had computed it."""
        tokens = np.concatenate([position + np.arange(first, end) for position, first, end in slots.pages.tolist()])
        blocks = slots.blocks[tokens // slots.block_tokens]
        for rows, layer in zip(self.cache.rows, state[self._part], strict=True):
            for plane, its in zip(rows, layer, strict=True):
                plane[blocks, tokens % slots.block_tokens] = its[:, tokens].swapaxes(0, 1)

    def wrong(self, state: State, slots: SlotMap) -> int:
        """Returns the number of wrong elements in all of its memory, if only these slots were loaded."""
        expected = Rank(*self._arguments)
        expected.fill(state, slots)
        return sum(int((mine != its).sum()) for mine, its in zip(self.cache.raw, expected.cache.raw, strict=True))

    def clear(self) -> None:
        """Poisons all memory."""
        for raw in self.cache.raw:
            raw[...] = POISON


# ---- pages


def page_bytes(state: State, page_layout: PageLayout) -> Bytes:
    """Returns the bytes of a page with this state, 0 between planes."""
    page = np.zeros(page_layout.nbytes, np.uint8)
    for layer, offsets in zip(state, page_layout.offsets, strict=True):
        for plane, offset in zip(layer, offsets, strict=True):
            page[offset : offset + plane.nbytes] = np.frombuffer(plane.tobytes(), np.uint8)
    return page


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


# ---- processes


def serve_rank(socket: Path, group: Group, stage: int, rank: int, pipe: Connection) -> None:
    """Executes ("store" or "load", model, prompt) commands. Sends the outcomes, or the pages and wrong elements."""
    ranks = {name: Rank(model, group, stage, rank, PAGE_TOKENS) for name, model in MODELS.items()}
    with Client(socket, timeout=PATIENCE_S) as client:
        assert client.wait_attached(PATIENCE_S)
        pipe.send("attached")
        while (command := pipe.recv()) is not None:
            what, name, prompt = command
            state = MODELS[name].state(prompt, PAGE_TOKENS * PAGES)
            pipe.send(
                {"store": store_part, "load": load_parts}[what](
                    client, ranks[name], keys_of_prompt(name, ranks[name], prompt), state
                )
            )


def keys_of_prompt(name: str, rank: Rank, prompt: int) -> Keys:
    """Returns the same keys for each group: the namespace depends on the page layout, but not on the rank."""
    space = Namespace(model=name, dtype="uint16", page_tokens=PAGE_TOKENS, layout=rank.paged.page.layout)
    return space.keys(range(prompt << 16, (prompt << 16) + PAGE_TOKENS * PAGES))


def store_part(client: Client, rank: Rank, keys: Keys, state: State) -> list[str]:
    """Stores a rank's part of the pages. Returns the outcomes."""
    slots = rank.slots(1, PAGES)
    rank.clear()
    rank.fill(state, slots)
    return [outcome.name for outcome in client.store(keys, Blocks(rank.paged, slots)).outcomes]


def load_parts(client: Client, rank: Rank, keys: Keys, state: State) -> tuple[int, int]:
    """Loads what a rank needs of the pages. Returns how many, and the number of wrong elements."""
    slots = rank.slots(2, PAGES)
    rank.clear()
    with client.match(keys) as match:
        return client.load(match, Blocks(rank.paged, slots)), rank.wrong(state, slots)
