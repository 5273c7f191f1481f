"""SGLang's real pools and allocators on the CPU, and the state that prompts have in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import (
    HybridLinearKVPool,
    HybridReqToTokenPool,
    MHATokenToKVPool,
    MLATokenToKVPool,
    ReqToTokenPool,
)
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from sglang_model import (
    DIM,
    FULL_LAYERS,
    LATENT,
    OTHER_LAYERS,
    AnyPrompt,
    Place,
    Salted,
    Spec,
    salted,
    share,
    state,
)
from sglang_untouched import Rows, Untouched

SLOTS: Final = 1024
_STATES: Final = 8
_FULL: Final = [0, 2, 4]  # the model's layers with full attention, if the other kind is between them
_OTHER: Final = [1, 3]


class Pools:
    """The pools of one process.

    Attributes:
        slots: The number of token slots.
        heads: The heads of this rank.
        drafts: The pools of draft models.
        allocator: The allocator of token slots.
        requests: The pool of requests, which has the recurrent states.
    """

    def __init__(self, spec: Spec, place: Place) -> None:
        self._spec, self._place, self._rank = spec, place, place.rank
        self.drafts: tuple[Any, ...] = ()
        self.heads = max(1, spec.heads // spec.ranks)
        self.slots = max(SLOTS, 16 * spec.page)
        self.requests: Any = _state_pool(spec) if spec.recurrent else ReqToTokenPool(8, SLOTS, "cpu", False)
        self.allocator: Any = self._make_allocator(self._make_pool())
        self._before = Untouched()
        self._loaded: list[Rows] = []

    @property
    def windowed_slots(self) -> int:
        """The number of slots that a hit needs in a sliding window."""
        return -(-self._spec.window // self._spec.page) * self._spec.page

    @property
    def model_layers(self) -> int:
        """The number of layers of the model."""
        return FULL_LAYERS + (OTHER_LAYERS if self._spec.kind in ("swa", "mamba") else 0)

    def allocate(self, tokens: int) -> torch.Tensor:
        """Returns slots for the tokens of a prompt."""
        if not self._spec.window or self._spec.page == 1:
            slots = self.allocator.alloc(tokens)
        else:
            none, last = torch.zeros(1, dtype=torch.int64), torch.tensor([-1], dtype=torch.int64)
            end = torch.tensor([tokens], dtype=torch.int64)
            slots = self.allocator.alloc_extend(none, none, end, end, last, tokens)
        assert slots is not None, "the pool of the test is too small"
        return slots

    def free(self, slots: torch.Tensor) -> None:
        """Frees the slots of a loaded prompt, of which only the end has slots in the window."""
        if self._spec.window:
            windowed = min(len(slots), self.windowed_slots)
            self.allocator.full_attn_allocator.free(slots[:-windowed])
            slots = slots[-windowed:]
        self.allocator.free(slots)

    def free_slots(self) -> dict[str, int]:
        """Returns the free slots of each pool."""
        free = {"kv": self.allocator.full_available_size() if self._spec.window else self.allocator.available_size()}
        if self._spec.window:
            free["swa"] = self.allocator.swa_available_size()
        if self._spec.recurrent:
            free["mamba"] = self.requests.mamba_allocator.available_size()
        return free

    def clear(self) -> None:
        """Frees and zeroes everything."""
        self.allocator.clear()
        if self._spec.recurrent:
            self.requests.mamba_allocator.clear()
        for _, tensor, _ in self._planes():
            tensor.zero_()
        for _, tensor in self._states():
            tensor.zero_()

    def write(self, number: AnyPrompt, slots: torch.Tensor) -> None:
        """Writes the state of all tokens of a prompt, as a forward pass does.

        Of replicas only the first writes it, the others something else: they have to load what the first has stored.
        """
        number = self._written(number)
        for plane, tensor, windowed in self._planes():
            where = self.allocator.translate_loc_from_full_to_swa(slots) if windowed else slots
            tensor[where] = self._expected(number, plane, tensor, len(slots))

    def write_snapshot(self, number: AnyPrompt, tokens: int) -> torch.Tensor | None:
        """Returns a slot with the recurrent state after the tokens of a prompt; None for models without one."""
        if not self._spec.recurrent:
            return None
        slot: torch.Tensor = self.requests.mamba_allocator.alloc(1)
        for layer, tensor in self._states():
            tensor[slot[0]] = self._snapshot(number, layer, tokens, tensor)
        return slot

    def has(self, number: AnyPrompt, slots: torch.Tensor, ends: int) -> bool:
        """Returns whether the slots have the state of a prompt, of which the last token is number `ends`."""
        own = {windowed: self._windowed(slots) if windowed else slots for _, _, windowed in self._planes()}
        self._loaded += [(tensor, own[windowed]) for _, tensor, windowed in self._planes()]
        return all(
            self._plane_has(number, plane, tensor, own[windowed], ends) for plane, tensor, windowed in self._planes()
        )

    def remember(self) -> None:
        """Remembers all bytes before a load."""
        self._loaded = []
        self._before = Untouched([*self._tensors(), *(tensor for _, tensor in self._states())])

    def only_loaded(self) -> bool:
        """Returns whether nothing has changed since remember() but what has() and has_snapshot() were called for."""
        return self._before.beside(self._loaded)

    def has_snapshot(self, number: AnyPrompt, slot: torch.Tensor, tokens: int) -> bool:
        """Returns whether a slot has the recurrent state after the tokens of a prompt."""
        self._loaded += [(tensor, slot.reshape(-1)) for _, tensor in self._states()]
        return all(
            torch.equal(tensor[slot], self._snapshot(number, layer, tokens, tensor)) for layer, tensor in self._states()
        )

    def _written(self, number: AnyPrompt) -> AnyPrompt:
        replica = self._place.context and self._spec.kind != "dsa-split"
        return number if not replica else Salted(salted(number).number, "of a replica")

    def _make_pool(self) -> Any:
        spec, dtype, heads = self._spec, torch.bfloat16, self.heads
        layers = spec.layers[self._place.stage] if spec.layers else FULL_LAYERS
        match spec.kind:
            case "mha":
                return MHATokenToKVPool(SLOTS, spec.page, dtype, heads, DIM, layers, "cpu", False)
            case "mla":
                return MLATokenToKVPool(SLOTS, spec.page, dtype, LATENT - 8, 8, layers, "cpu", False)
            case "swa":
                return SWAKVPool(SLOTS, SLOTS, spec.page, dtype, heads, DIM, _OTHER, _FULL, "cpu")
            case _:
                pool = self.requests.mamba_pool
                return HybridLinearKVPool(SLOTS, dtype, spec.page, heads, DIM, _FULL, "cpu", pool)

    def _make_allocator(self, pool: Any) -> Any:
        page, slots = self._spec.page, self.slots
        if self._spec.window:
            return SWATokenToKVPoolAllocator(slots, slots, page, torch.bfloat16, "cpu", pool, False)
        if page == 1:
            return TokenToKVPoolAllocator(slots, torch.bfloat16, "cpu", pool, False)
        return PagedTokenToKVPoolAllocator(slots, page, torch.bfloat16, "cpu", pool, False)

    def _planes(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Yields the name and the tensor [slots, heads, width] of all attention layers, and whether it is windowed."""
        pool = self.allocator.get_kvcache()
        if self._spec.kind == "mla":
            for layer, latents in enumerate(pool.kv_buffer):
                yield f"latent {layer}", latents, False
            return
        for name in ("full_kv_pool", "swa_kv_pool"):
            one = getattr(pool, name, pool if name == "full_kv_pool" else None)
            pairs = enumerate(zip(one.k_buffer, one.v_buffer, strict=True)) if one is not None else ()
            for layer, (keys, values) in pairs:
                yield f"{name} k {layer}", keys, name == "swa_kv_pool"
                yield f"{name} v {layer}", values, name == "swa_kv_pool"

    def _tensors(self) -> Iterable[torch.Tensor]:
        """Returns tensors in all memory of cached pages but recurrent states."""
        return (tensor for _, tensor, _ in self._planes())

    def _states(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self._spec.recurrent:
            cache = self.requests.mamba_pool.mamba_cache
            for at, tensor in enumerate((cache.temporal, *cache.conv)):
                for layer in range(OTHER_LAYERS):
                    yield f"state {at} {layer}", tensor[layer]

    def _windowed(self, slots: torch.Tensor) -> torch.Tensor:
        translated: torch.Tensor = self.allocator.translate_loc_from_full_to_swa(slots[-self.windowed_slots :])
        return translated

    def _plane_has(self, number: AnyPrompt, plane: str, tensor: torch.Tensor, slots: torch.Tensor, ends: int) -> bool:
        return bool(torch.equal(tensor[slots], self._expected(number, plane, tensor, ends)[ends - len(slots) :]))

    def _expected(self, number: AnyPrompt, plane: str, tensor: torch.Tensor, tokens: int) -> torch.Tensor:
        plane = self._place.marker + plane
        if "latent" in plane:
            return state(number, plane, (tokens, 1, tensor.shape[-1]))
        whole = state(number, plane, (tokens, self._spec.heads, tensor.shape[-1]))
        return share(whole, self._rank, self._spec.ranks)

    def _snapshot(self, number: AnyPrompt, layer: str, tokens: int, tensor: torch.Tensor) -> torch.Tensor:
        plane = f"{self._place.marker}{layer} of rank {self._rank} after {tokens}"
        values = state(number, plane, (1, 1, tensor[0].numel()))
        return values.reshape(tensor[0].shape).to(tensor.dtype)


def _state_pool(spec: Spec) -> Any:
    sizes = {"intermediate_size": 32, "num_heads": 4, "head_dim": 8, "state_size": 4, "conv_kernel": 4}
    shape = Mamba2StateShape.create(tp_world_size=spec.ranks, n_groups=spec.ranks, **sizes)
    return HybridReqToTokenPool(
        size=8,
        mamba_size=_STATES,
        mamba_spec_state_size=8,
        max_context_len=SLOTS,
        device="cpu",
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(shape=shape, layers=_OTHER),
        mamba_layer_ids=_OTHER,
        enable_mamba_extra_buffer=True,
    )
