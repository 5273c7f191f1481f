"""The tiny models of the tests: their shapes, prompts, and the state that each rank has for a prompt."""

from __future__ import annotations

import json
import random
from array import array
from pathlib import Path
from typing import Any

import msgspec
import torch

WINDOW = 48
DIM = 8
LATENT = 24
FULL_LAYERS, OTHER_LAYERS = 3, 2


class Spec(msgspec.Struct, frozen=True):
    """An engine to test with.

    Attributes:
        kind: "mha", "mla", "swa" or "mamba"; or a family of sglang_pool_makers.
        page: The number of tokens in a page.
        heads: KV heads of the whole model.
        ranks: The number of tensor-parallel ranks.
        stages: The number of pipeline stages.
        contexts: The number of ranks that divide the computation of a prompt, and have the same state.
        splits: The number of ranks, of `ranks`, that divide the tokens of a page.
        layout: The layout of HiCache's host pool; "" for the linker; "kit" for SGLang's own fixtures.
        draft: How SGLang has the layers of a draft model: "packed" or "side"; "" without one.
        layers: The layers with full attention of each stage; the same number by default.
    """

    kind: str = "mha"
    page: int = 16
    heads: int = 4
    ranks: int = 1
    stages: int = 1
    contexts: int = 1
    splits: int = 1
    layout: str = ""
    draft: str = ""
    layers: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """A name for a test's title."""
        ranks = [("tp", self.ranks), ("pp", self.stages), ("cp", self.contexts), ("dcp", self.splits)]
        counts = "".join(f"{name}{count}" for name, count in ranks if count > 1 or name == "tp")
        layers = "and".join(map(str, self.layers))
        return "-".join(filter(None, [self.kind, str(self.page), counts, layers, self.layout, self.draft]))

    @property
    def processes(self) -> int:
        """The number of processes."""
        return self.ranks * self.stages * self.contexts

    @property
    def window(self) -> int:
        """The tokens in the sliding window; 0 without one."""
        if self.kind.startswith("dsv4"):
            return 128
        return WINDOW if self.kind.endswith("swa") else 0

    @property
    def recurrent(self) -> bool:
        """Whether the model has recurrent state."""
        return self.kind.startswith("mamba") or self.kind == "qsa"

    @property
    def is_physical(self) -> bool:
        """Whether all bytes of all buffers are compared."""
        return bool(self.draft) or self.kind not in ("mha", "mla", "swa", "mamba")


class Salted(msgspec.Struct, frozen=True):
    """A prompt of a request that shares nothing with requests of another salt. Its state is another one, too.

    Attributes:
        number: The number of the prompt, which determines its tokens.
        extra_key: SGLang's extra key, which contains the LoRA adapter of a request.
        cache_salt: The salt.
    """

    number: int
    extra_key: str | None = None
    cache_salt: str | None = None


AnyPrompt = int | Salted


class Place(msgspec.Struct, frozen=True):
    """What a process is among those of an engine, each number from 0."""

    stage: int
    context: int
    rank: int
    tokens: int

    @property
    def marker(self) -> str:
        """A text that distinguishes the state of this stage, and of these tokens of a page."""
        parts = {"stage": self.stage, "tokens": self.tokens}
        return "".join(f"{name} {number} " for name, number in parts.items() if number)


def place_of(spec: Spec, number: int) -> Place:
    """Returns the place of a process, which SGLang numbers by stage, then by context rank, then by tensor rank."""
    rank = number % spec.ranks
    stage, context = divmod(number // spec.ranks, spec.contexts)
    return Place(stage, context, rank, rank % spec.splits)


class RankArguments(msgspec.Struct, frozen=True):
    """What a rank is made of.

    Attributes:
        spec: The model and the number of ranks.
        rank: The number of the process.
        model: The folder with the configuration of the model.
        rendezvous: A file by which the ranks find each other.
        extra: The settings of pagetier.
    """

    spec: Spec
    rank: int
    model: Path
    rendezvous: Path
    extra: dict[str, Any]


class Restored(msgspec.Struct, frozen=True):
    """What became of a prompt that was asked for.

    Attributes:
        hit: The tokens that the lookup found beyond the GPU.
        loaded: The tokens that were loaded.
        equal: Whether the loaded state is that of the prompt.
        failed: Whether SGLang would abort the request.
    """

    hit: int
    loaded: int
    equal: bool
    failed: bool


def whole(spec: Spec, pages: int) -> list[Restored]:
    """Returns the result of each rank if all pages of a prompt were loaded."""
    tokens = pages * spec.page
    return [Restored(tokens, tokens, equal=True, failed=False)] * spec.processes


def computed(spec: Spec) -> list[Restored]:
    """Returns the result of each rank if nothing was found."""
    return [Restored(0, 0, equal=False, failed=False)] * spec.processes


def write_config(folder: Path, spec: Spec) -> Path:
    """Writes the configuration of the model and returns its folder."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": spec.heads,
        "num_hidden_layers": sum(spec.layers) or FULL_LAYERS * spec.stages,
        "vocab_size": 1 << 20,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
        "head_dim": DIM,
        "kind": spec.kind,
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def prompt(number: int, tokens: int) -> array[int]:
    """Returns the tokens of a prompt."""
    numbers = random.Random(number)
    return array("q", (numbers.randrange(1 << 20) for _ in range(tokens)))


def salted(number: AnyPrompt) -> Salted:
    """Returns a prompt with its salt, which a mere number does not have."""
    return number if isinstance(number, Salted) else Salted(number)


def state(number: AnyPrompt, plane: str, shape: tuple[int, int, int]) -> torch.Tensor:
    """Returns one plane of a prompt's state, [tokens, heads of the model, width]."""
    generator = torch.Generator().manual_seed(random.Random(f"{number} {plane}").randrange(1 << 60))
    return torch.randn(*shape, generator=generator).to(torch.bfloat16)


def share(whole: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """Returns the heads of one rank. Several ranks share a head if there are fewer heads than ranks."""
    heads = whole.shape[1]
    first = rank * heads // ranks
    return whole[:, first : first + max(1, heads // ranks)]
