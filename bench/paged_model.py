"""A Llama in plain torch whose keys and values lie in a paged cache, as an engine has it. The weights are random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right


class ModelSize(msgspec.Struct, frozen=True):
    """The size of a model and of its cache."""

    layers: int = 24
    heads: int = 8
    head_dim: int = 128
    inner: int = 4096
    vocabulary: int = 32_000
    block_tokens: int = 16

    @property
    def hidden(self) -> int:
        """The width of the model."""
        return self.heads * self.head_dim

    @property
    def parameters(self) -> int:
        """The number of weights; the embedding is also the output."""
        return self.vocabulary * self.hidden + self.layers * (4 * self.hidden**2 + 3 * self.hidden * self.inner)

    @property
    def token_bytes(self) -> int:
        """The bytes of a token's keys and values."""
        return self.layers * 2 * self.hidden * 2


class Layer(msgspec.Struct, frozen=True, eq=False):
    """The weights of a layer: of attention, [hidden, 3 * hidden] and back, and of the MLP, gate and up joined."""

    attention: Any
    output: Any
    gate_up: Any
    down: Any


class Step(msgspec.Struct, frozen=True, eq=False):
    """The tokens of one forward pass; all tensors are on the model's device.

    Attributes:
        tokens: The token IDs.
        positions: Their positions in the prompt.
        slots: Their slots in the cache: block * block_tokens + place.
        table: The blocks that they attend to.
        mask: Which of the tokens in `table` they attend to; by default causally, the last token to all.
    """

    tokens: Any
    positions: Any
    slots: Any
    table: Any
    mask: Any = None


class PagedModel:
    """The model with its cache: for each layer a tensor [2, blocks, tokens, heads, elements] in bfloat16."""

    def __init__(self, size: ModelSize, blocks: int, most_tokens: int, device: str) -> None:
        self.size, self.device = size, device
        generator = torch.Generator(device).manual_seed(7)
        normal = partial(torch.randn, dtype=torch.bfloat16, device=device, generator=generator)
        hidden, inner = size.hidden, size.inner
        self.embedding = normal(size.vocabulary, hidden)
        self.layers = [
            Layer(
                normal(hidden, 3 * hidden) * hidden**-0.5,
                normal(hidden, hidden) * hidden**-0.5,
                normal(hidden, 2 * inner) * hidden**-0.5,
                normal(inner, hidden) * inner**-0.5,
            )
            for _ in range(size.layers)
        ]
        shape = (2, blocks, size.block_tokens, size.heads, size.head_dim)
        self.cache = [torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(size.layers)]
        self._cosines, self._sines = _rotations(size.head_dim, most_tokens, device)

    def step(self, tokens: Any, first: int, block_table: Any) -> Step:
        """Returns the pass over some tokens of a prompt from position `first` on; they end at the end of a block."""
        positions = torch.arange(first, first + len(tokens), device=self.device)
        table = block_table[: (first + len(tokens)) // self.size.block_tokens]
        return Step(tokens, positions, self.slots(positions, block_table), table)

    def slots(self, positions: Any, block_table: Any) -> Any:
        """Returns the slots of some positions of a prompt."""
        block = self.size.block_tokens
        return block_table[positions // block] * block + positions % block

    def layer(self, number: int, x: Any, step: Step) -> Any:
        """Returns the output of a layer, after adding the tokens' keys and values to the cache."""
        weights, size = self.layers[number], self.size
        projected = (_normed(x) @ weights.attention).view(-1, 3, size.heads, size.head_dim)
        queries, keys, values = projected.unbind(1)
        rows = self.cache[number].view(2, -1, size.heads, size.head_dim)
        rows[0].index_copy_(0, step.slots, self._rotated(keys, step.positions))
        rows[1].index_copy_(0, step.slots, values)
        x = x + self._attention(self._rotated(queries, step.positions), number, step) @ weights.output
        gate, up = (_normed(x) @ weights.gate_up).chunk(2, -1)
        return x + (functional.silu(gate) * up) @ weights.down

    def logits(self, x: Any) -> Any:
        """Returns the logits of the last token."""
        return _normed(x[-1:]) @ self.embedding.T

    def _attention(self, queries: Any, number: int, step: Step) -> Any:
        size = self.size
        cached = self.cache[number].index_select(1, step.table).view(2, -1, size.heads, size.head_dim)
        q, k, v = (rows.transpose(0, 1)[None] for rows in (queries, *cached.unbind(0)))
        mask = causal_lower_right(q.shape[2], k.shape[2]) if step.mask is None else step.mask
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return attended[0].transpose(0, 1).reshape(-1, size.hidden)

    def _rotated(self, rows: Any, positions: Any) -> Any:
        cosines, sines = self._cosines[positions, None], self._sines[positions, None]
        one, other = rows.chunk(2, -1)
        return torch.cat((one * cosines - other * sines, other * cosines + one * sines), -1)


class Pass:
    """A forward pass that can be repeated: the embedding, each layer, and the logits.

    Attributes:
        logits: The logits of the last token, after run(). Overwritten by the next run.
    """

    def __init__(self, model: PagedModel, step: Step) -> None:
        self.model, self.given = model, step
        self.logits: Any = None
        self._x: Any = None
        self._pieces: list[Callable[[], object]] = list(self._eager())

    def run(self, before_layer: Callable[[int], object] = lambda number: None) -> Any:
        """Computes the logits, and calls `before_layer` with its number before each layer."""
        first, *layers, last = self._pieces
        first()
        for number, layer in enumerate(layers):
            before_layer(number)
            layer()
        last()
        return self.logits

    def capture(self) -> None:
        """Replaces each piece by a CUDA graph, as engines do that wait for loads layer by layer."""
        for _ in range(2):
            self.run()
        torch.cuda.synchronize()
        graphs: list[Any] = []
        for piece in self._pieces:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=graphs[0].pool() if graphs else None):
                piece()
            graphs.append(graph)
        self._pieces = [graph.replay for graph in graphs]

    def _eager(self) -> Iterator[Callable[[], object]]:
        yield self._embed
        for number in range(self.model.size.layers):
            yield partial(self._layer, number)
        yield self._head

    def _embed(self) -> None:
        self._x = self.model.embedding[self.given.tokens]

    def _layer(self, number: int) -> None:
        self._x = self.model.layer(number, self._x, self.given)

    def _head(self) -> None:
        self.logits = self.model.logits(self._x)


def _normed(x: Any) -> Any:
    return functional.rms_norm(x, x.shape[-1:])


def _rotations(head_dim: int, most_tokens: int, device: str) -> tuple[Any, Any]:
    """Returns cosines and sines [positions, half a head] of the rotary embeddings."""
    rates = 10_000.0 ** -(torch.arange(0, head_dim, 2, device=device) / head_dim)
    angles = torch.arange(most_tokens, device=device)[:, None] * rates
    return angles.cos().bfloat16(), angles.sin().bfloat16()
