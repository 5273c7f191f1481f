"""An engine that computes, stores and loads one prompt, with a model in plain torch and its cache in pagetier."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import torch

from decoding import Decoding
from paged_model import ModelSize, PagedModel, Pass
from pagetier.client import Client, LoadHandle, StoreHandle

LONG_S: Final = 30.0
MIB: Final = 1 << 20


class Scale(msgspec.Struct, frozen=True):
    """The amount of work. `prompt` tokens are cached, `tail` more are computed after a load.

    Attributes:
        device: The device's name in torch.
        model: The size of the model.
        prompt: The tokens that are stored and loaded, whole pages.
        tail: The tokens that follow, whole blocks.
        chunk: The tokens of one pass of the prefill.
        page_tokens: The tokens of a page.
        context: The most tokens of the request that decodes.
        steps: The decoding steps of one round.
        rounds: The rounds that count.
    """

    device: str = "cuda:0"
    model: ModelSize = ModelSize()
    prompt: int = 32_768
    tail: int = 128
    chunk: int = 8192
    page_tokens: int = 256
    context: int = 4096
    steps: int = 40
    rounds: int = 5

    @property
    def prompt_bytes(self) -> int:
        """The bytes of the prompt's pages."""
        return self.prompt * self.model.token_bytes

    @property
    def arena_bytes(self) -> int:
        """The size of an arena for the prompt and one and a half others, in frames of 1 MiB."""
        page_mib = -(-self.page_tokens * self.model.token_bytes // MIB)
        return 5 * self.prompt // self.page_tokens * page_mib // 2 * MIB


TINY: Final = Scale("cpu", ModelSize(2, 2, 16, 64, 500), 256, 16, 128, 64, 64, steps=4, rounds=1)


def fitted(scale: Scale) -> Scale:
    """Returns the work with the longest prompt whose arena fits into /dev/shm."""
    while scale.arena_bytes > shutil.disk_usage("/dev/shm").free and scale.prompt > scale.chunk:
        scale = msgspec.structs.replace(scale, prompt=scale.prompt // 2)
    return scale


class Engine:
    """The model, its registered cache, and one prompt in two places: where it is computed and where it is loaded."""

    def __init__(self, client: Client, scale: Scale) -> None:
        self.client, self.scale = client, scale
        block, total = scale.model.block_tokens, scale.prompt + scale.tail
        counts = [total // block, total // block, scale.context // block]
        self.model = PagedModel(scale.model, sum(counts), max(total, scale.context), scale.device)
        self.computed_in, self.loaded_into, theirs = _scattered(counts)
        self.cache = client.register(
            self.model.cache, layout="flash_attention", model="bench/paged", page_tokens=scale.page_tokens
        )
        rng = np.random.default_rng(3)
        self.prompt = rng.integers(0, scale.model.vocabulary, total)
        self.tokens = torch.from_numpy(self.prompt).to(scale.device)
        self.tail = self.tail_in(self.loaded_into)
        self.decoding = Decoding(self.model, theirs.to(scale.device), scale.context)

    def tail_in(self, table: Any) -> Pass:
        """Returns the pass over the tail of the prompt whose blocks these are."""
        first = self.scale.prompt
        return Pass(self.model, self.model.step(self.tokens[first:], first, table.to(self.scale.device)))

    def prefill_passes(self) -> list[Pass]:
        """Returns the passes that compute the prompt without its tail."""
        table, chunk = self.computed_in.to(self.scale.device), self.scale.chunk
        return [
            Pass(self.model, self.model.step(self.tokens[first : first + chunk], first, table))
            for first in range(0, self.scale.prompt, chunk)
        ]

    def begin_load(self) -> LoadHandle:
        """Looks the prompt up and starts to load it."""
        with self.cache.match(self.prompt[: self.scale.prompt]) as match:
            load = self.cache.async_load(match, self.loaded_into.numpy())
        assert load.pages * self.scale.page_tokens == self.scale.prompt, "the prompt is not cached"
        return load

    def begin_store(self, salt: int) -> StoreHandle:
        """Starts to store the bytes of the prompt under the name of another prompt."""
        other = (self.prompt[: self.scale.prompt] + salt) % self.scale.model.vocabulary
        return self.cache.async_store(other, self.computed_in.numpy())

    def wait_for(self, load: LoadHandle, layer: int) -> None:
        """Makes the model wait for a layer; on the CPU, this thread."""
        if self.on_gpu:
            waits = load.make_stream_wait(torch.cuda.current_stream(), layer, LONG_S)
        else:
            waits = load.wait(layer, LONG_S)
        assert waits, f"layer {layer}: {load.failed or 'not loaded in time'}"

    def forget(self) -> None:
        """Overwrites the blocks into which the prompt is loaded."""
        blocks = self.loaded_into.to(self.scale.device)
        for layer in self.model.cache:
            layer[:, blocks] = 1.0
        self.settle()

    def settle(self) -> None:
        """Waits for the device."""
        if self.on_gpu:
            torch.cuda.synchronize()

    @property
    def on_gpu(self) -> bool:
        """Whether the model is on a GPU."""
        return self.scale.device != "cpu"


def _scattered(counts: Sequence[int]) -> list[Any]:
    """Returns disjoint tables of as many blocks, in random order."""
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(5))
    return list(order.split(list(counts)))
