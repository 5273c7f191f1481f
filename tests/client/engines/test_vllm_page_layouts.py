"""Tests which layers of vLLM are divided among ranks, and which pages engines with other ranks share."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.vllm.kv_tensors import paged_cache
from pagetier.kernels.layout.cache_layout import LayoutError
from pagetier.kernels.layout.page_layout import Shard
from pagetier.kernels.layout.transfer import PagedCache
from vllm_caches import (
    BLOCKS,
    TOKENS,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    UniformTypeKVCacheSpecs,
)


@dataclass(frozen=True)
class PackedSpec:
    """K and V of all heads in a few slots. vLLM's class is the same."""

    block_size: int
    num_kv_heads: int
    num_head_slots: int


PackedSpec.__name__ = "FullAttentionSpec"


@dataclass(frozen=True)
class ReplicatedSpec(MambaSpec):
    tp_replicated: bool = True


ReplicatedSpec.__name__ = "MambaSpec"


def cache_of(heads: int, states: int = TOKENS, width: int = 8) -> torch.Tensor:
    return torch.zeros((BLOCKS, heads, states, width), dtype=torch.bfloat16)


def heads_and_an_index(ranks: int) -> PagedCache:
    """Returns the first rank's cache of two heads beside an index of one."""
    heads = 2 // ranks
    spec = UniformTypeKVCacheSpecs(TOKENS, {"a": FullAttentionSpec(TOKENS, heads), "b": MLAAttentionSpec()})
    return paged_cache([cache_of(heads), cache_of(1)], spec, Shard(0, ranks), 2, TOKENS)


def heads_and_fewer_states(ranks: int) -> PagedCache:
    heads = 2 // ranks
    compressed = MLAAttentionSpec(tokens_per_state=4)
    spec = UniformTypeKVCacheSpecs(TOKENS, {"a": FullAttentionSpec(TOKENS, heads), "b": compressed})
    return paged_cache([cache_of(heads), cache_of(1, TOKENS // 4)], spec, Shard(0, ranks), 2, TOKENS)


def packed(ranks: int) -> PagedCache:
    spec = PackedSpec(TOKENS, 2 // ranks, 2)
    return paged_cache([cache_of(2, width=16 // ranks)], spec, Shard(0, ranks), 2, TOKENS)


def states(ranks: int, spec: MambaSpec) -> PagedCache:
    return paged_cache([cache_of(1, 1, 64)], spec, Shard(0, ranks), 2, TOKENS)


def test_an_index_beside_heads_is_not_divided() -> None:
    one, two = heads_and_an_index(1), heads_and_an_index(2)
    assert one.page.layout == two.page.layout
    assert [[rows.heads for rows in layer] for layer in two.page.layers] == [[2], [1]]


def test_layers_with_several_numbers_of_states_are_divided_by_heads() -> None:
    one, two = heads_and_fewer_states(1), heads_and_fewer_states(2)
    assert one.page.layout == two.page.layout and one.page.tokens == 1
    assert one.page.nbytes == 2 * TOKENS * 16 + TOKENS // 4 * 16


def test_packed_heads_belong_to_their_rank() -> None:
    assert packed(1).page.layout != packed(2).page.layout
    assert packed(1).page.nbytes == packed(2).page.nbytes


def test_a_state_that_all_ranks_have_is_stored_once() -> None:
    one, two = (states(ranks, ReplicatedSpec()) for ranks in (1, 2))
    assert one.page.layout == two.page.layout
    divided = states(2, MambaSpec())
    assert divided.page.nbytes == 2 * two.page.nbytes


def test_blocks_that_are_not_contiguous_are_refused() -> None:
    compressed, tensor = MLAAttentionSpec(tokens_per_state=4), cache_of(1, TOKENS // 2)
    for layer in (tensor[:, :, ::2], cache_of(1, 3)):
        with pytest.raises(LayoutError):
            paged_cache([layer], compressed, Shard(0, 1), 1, TOKENS)


def test_a_group_has_as_many_layers_as_vllm_specifies() -> None:
    spec = UniformTypeKVCacheSpecs(TOKENS, {"a": MLAAttentionSpec(), "b": MLAAttentionSpec()})
    with pytest.raises(UnsupportedError, match="2 layers of a group, which has 3"):
        paged_cache([cache_of(1)] * 3, spec, Shard(0, 1), 1, TOKENS)
