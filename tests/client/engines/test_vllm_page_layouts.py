"""Tests which layers of vLLM are divided among ranks, and which pages engines with other ranks share."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fake_vllm_config import Config
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.vllm.kv_tensors import kv_heads, paged_cache
from pagetier.kernels.host import copy
from pagetier.kernels.layout.cache_layout import LayoutError
from pagetier.kernels.layout.frames import Arena, Frames, frames_of
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


# --- Models whose layers have several numbers of KV heads


def config_of(heads: int, draft: Any = None, **settings: Any) -> Any:
    """Returns vLLM's configuration of a model with this number of KV heads, as vLLM says it."""
    model = SimpleNamespace(hf_config=Config(**settings), get_total_num_kv_heads=lambda: heads)
    parallel = SimpleNamespace(tensor_parallel_size=8)
    config = SimpleNamespace(model_config=model, parallel_config=parallel, load_config=None)
    if draft is not None:
        config.speculative_config = SimpleNamespace(
            method="eagle", draft_model_config=draft.model_config, draft_parallel_config=parallel
        )
    return config


@pytest.mark.parametrize(
    "settings",
    [
        {"num_key_value_heads": 4, "num_attention_heads": 64},
        {"num_key_value_heads": None, "linear_num_value_heads": 32, "linear_num_key_heads": 16},
        {"attn_config": {"kv_n_heads": 4}},
        {"num_key_value_heads": 4, "indexer_kv_heads": 1},  # the indexer's keys are latents
    ],
)
def test_ranks_share_a_head_if_all_layers_have_as_many(settings: dict[str, Any]) -> None:
    assert kv_heads(config_of(4, **settings), 8) == 4
    assert kv_heads(config_of(4, config_of(4, num_key_value_heads=4), **settings), 8) == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"num_key_value_heads": 4, "swa_num_key_value_heads": 8},  # MiMo-V2
        {"num_attention_groups": 4, "attention_other_setting": {"num_attention_groups": 8}},
        {"num_kv_heads": [4, 4, 8]},
        {"block_configs": [{"attention": {"n_heads_in_group": 8}}]},
    ],
)
def test_each_rank_has_its_own_head_if_some_layers_may_have_more(settings: dict[str, Any]) -> None:
    assert kv_heads(config_of(4, **settings), 8) == 8
    assert kv_heads(config_of(4, **settings), 2) == 4


def test_each_rank_has_its_own_head_beside_a_draft_with_more() -> None:
    assert kv_heads(config_of(4, config_of(8, num_key_value_heads=8), num_key_value_heads=4), 8) == 8
    assert kv_heads(config_of(4, config_of(4, swa_num_key_value_heads=8), num_key_value_heads=4), 8) == 8


def test_no_rank_gets_the_head_of_another_one() -> None:
    """Layers of eight heads on eight ranks, in a model that has four heads in its other layers."""
    ranks, skip = 8, np.zeros(0, np.uint8)
    heads = kv_heads(config_of(4, num_key_value_heads=4, swa_num_key_value_heads=ranks), ranks)
    tensors = [torch.full_like(cache_of(1), rank + 1) for rank in range(ranks)]
    spec = FullAttentionSpec(TOKENS, 1)
    caches = [paged_cache([one], spec, Shard(rank, ranks), heads, TOKENS) for rank, one in enumerate(tensors)]
    frames = frames_for(caches[0])
    for cache in caches:
        for transfer in cache.storing(cache.in_a_row(np.array([1], np.int32), skip)):
            copy.gather(transfer, frames)
    for tensor in tensors:
        tensor[2] = 0
    for cache, tensor in zip(caches, tensors, strict=True):
        copy.scatter(cache.loading(cache.in_a_row(np.array([2], np.int32), skip)), frames)
        assert torch.equal(tensor[2], tensor[1])


def frames_for(cache: PagedCache) -> Frames:
    """Returns the frames of one page in memory of their own."""
    memory = np.zeros(cache.page.nbytes, np.uint8)
    return frames_of(Arena(memory.ctypes.data, memory.nbytes, memory.nbytes, memory), [[0]])
