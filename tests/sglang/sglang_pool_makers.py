"""Makes SGLang's KV pools of all families on the CPU, for tiny models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from sglang.srt.environ import envs
from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool
from sglang.srt.mem_cache.dsa_cache_layer_split import LayerSplitDSATokenToKVPool
from sglang.srt.mem_cache.memory_pool import (
    DSATokenToKVPool,
    HybridLinearKVPool,
    MHATokenToKVPool,
    MHATokenToKVPoolFP4,
    MHATokenToKVPoolMXFP8,
    MiniMaxSparseKVPool,
    MLATokenToKVPool,
    MLATokenToKVPoolFP4,
)
from sglang.srt.mem_cache.minimax_m3_nvfp4_pool import MiniMaxM3Nvfp4KVPool
from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from sglang_model import Place, Spec

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
RATIOS: Final = [0, 4, 128, 4, 1, 1, 2]
"""The compression of the layers of DeepSeek V4.1; V4 has the first four, or as many as a stage has."""


def make_pool(spec: Spec, place: Place, slots: int, heads: int, mamba: Any) -> Any:
    """Returns the KV pool of one rank.

    Args:
        spec: The model.
        place: The rank.
        slots: The number of tokens that it holds.
        heads: The heads that this rank has of the model's.
        mamba: The pool of recurrent states; None without them.
    """
    page, common = spec.page, (slots, spec.page)
    dim = {"head_num": heads, "head_dim": 128, "layer_num": 3, "device": "cpu", "enable_memory_saver": False}
    makers: Mapping[str, Callable[[], Any]] = {
        "dsa": lambda: _sparse(slots, page, 3, BF16, 24),
        "dsa-fp8": lambda: _sparse(slots, page, 3, FP8, 656),
        "dsa-split": lambda: _sparse_layers(slots, page, place.context, spec.contexts),
        "dsa-swa": lambda: _sparse_windows(slots, page),
        "dsv4": lambda: _deepseek_v4(slots, page, RATIOS[: spec.layers[place.stage] if spec.layers else 4]),
        "dsv4.1": lambda: _deepseek_v4(slots, page, RATIOS, kv_source_layers=[4, 6], kv_layout="v41"),
        "minimax-m3": lambda: MiniMaxSparseKVPool(
            *common, BF16, heads, 8, 16, [0], [1, 2], "cpu", [2], start_layer=0, end_layer=3
        ),
        "minimax-m3-fp4": lambda: _minimax_fp4(slots, page, heads),
        "mha": lambda: MHATokenToKVPool(*common, BF16, **dim),
        "mha-hnd": lambda: _heads_first(slots, page, heads),
        "mha-fp4": lambda: MHATokenToKVPoolFP4(*common, torch.float4_e2m1fn_x2, **dim),
        "mha-mxfp8": lambda: MHATokenToKVPoolMXFP8(*common, FP8, **dim),
        "mla": lambda: _latents(MLATokenToKVPool, slots, page, BF16),
        "mla-fp8": lambda: _latents(MLATokenToKVPool, slots, page, FP8),
        "mla-fp4": lambda: _latents(MLATokenToKVPoolFP4, slots, page, torch.float4_e2m1fn_x2),
        "mamba-swa": lambda: SWAKVPool(slots, slots, page, BF16, heads, 8, [4], [0, 2], "cpu"),
        "mamba-mla": lambda: HybridLinearKVPool(
            slots, BF16, page, 1, 8, [0, 2, 4], "cpu", mamba, use_mla=True, kv_lora_rank=16, qk_rope_head_dim=8
        ),
        "mamba-dsa": lambda: HybridLinearKVPool(
            *(slots, BF16, page, 1, 8, [0, 2, 4], "cpu", mamba),
            use_mla=True,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            use_dsa=True,
            index_head_dim=128,
            kv_cache_dim=24,
        ),
        "qsa": lambda: QSATokenToKVPool(
            size=slots,
            dtype=BF16,
            page_size=page,
            head_num=heads,
            head_dim=8,
            device="cpu",
            full_attention_layer_ids=[0, 2, 4],
            mamba_pool=mamba,
            qsa_index_kv_heads=1,
            qsa_index_head_dim=32,
            qsa_compress_ratio=4,
            qsa_token_topk=16,
            num_request_slots=8,
        ),
    }
    return makers[spec.kind]()


def model_layers(spec: Spec) -> int:
    """Returns the number of layers of a model."""
    if spec.kind.startswith("dsv4"):
        return len(RATIOS) if spec.kind == "dsv4.1" else 4
    return 5 if spec.recurrent else 3


def make_draft(spec: Spec, slots: int, heads: int) -> Any:
    """Returns the pool of a draft model with one layer. HiCache packs those whose rows are like the model's."""
    match spec.kind if spec.draft == "packed" else "":
        case "dsa" | "dsa-fp8":
            return _sparse(slots, spec.page, 1, BF16 if spec.kind == "dsa" else FP8, 24 if spec.kind == "dsa" else 656)
        case "dsv4" | "dsv4.1":
            return _deepseek_v4(
                slots, spec.page, [0], is_draft_worker=True, kv_layout="v4" if spec.kind == "dsv4" else "v41"
            )
        case "mha":
            return MHATokenToKVPool(slots, spec.page, BF16, heads, 128, 1, "cpu", False)
        case "mla":
            return MLATokenToKVPool(slots, spec.page, BF16, 24, 8, 1, "cpu", False)
        case _:
            return MHATokenToKVPool(slots, spec.page, BF16, heads, 8, 1, "cpu", False)


def _sparse(slots: int, page: int, layers: int, dtype: Any, width: int) -> Any:
    rank, rope = (512, 64) if width == 656 else (16, 8)
    return DSATokenToKVPool(slots, page, rank, dtype, rope, layers, "cpu", 128, False, width)


def _sparse_layers(slots: int, page: int, rank: int, ranks: int) -> Any:
    """Returns a pool with a part of three layers."""
    width = {"layer_shard_rank": rank, "layer_shard_size": ranks}
    return LayerSplitDSATokenToKVPool(slots, page, 16, BF16, 8, 3, "cpu", 128, False, 24, **width)


def _sparse_windows(slots: int, page: int) -> Any:
    common = {"page_size": page, "enable_memory_saver": False, "device": "cpu"}
    sparse = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "index_head_dim": 128, "kv_cache_dim": 24}
    latents = {"kv_lora_rank": 16, "qk_rope_head_dim": 8}
    return SWAKVPool(
        *(slots, slots, page, BF16, 1, 8, [1], [0, 2], "cpu"),
        full_kv_pool_class=DSATokenToKVPool,
        swa_kv_pool_class=MLATokenToKVPool,
        full_kv_pool_kwargs=common | sparse,
        swa_kv_pool_kwargs=common | latents,
    )


def _deepseek_v4(slots: int, page: int, ratios: list[int], **more: Any) -> Any:
    pages = slots // page
    return DeepSeekV4TokenToKVPool(
        max_num_reqs=8,
        swa_size=slots,
        c4_size=slots // 4,
        c128_size=slots // 128,
        c4_state_pool_size=16 * pages,
        c128_state_pool_size=0,
        page_size=page,
        swa_page_size=page,
        dtype=FP8,
        c4_state_dtype=torch.float32,
        c128_state_dtype=torch.float32,
        qk_nope_head_dim=448,
        qk_rope_head_dim=64,
        indexer_head_dim=128,
        layer_num=len(ratios),
        device="cpu",
        enable_memory_saver=False,
        compression_ratios=ratios,
        full_size=slots,
        start_layer=0,
        end_layer=len(ratios),
        **more,
    )


def _minimax_fp4(slots: int, page: int, heads: int) -> Any:
    return MiniMaxM3Nvfp4KVPool(
        size=slots,
        page_size=page,
        dtype=BF16,
        head_num=heads,
        head_dim=128,
        idx_head_dim=128,
        dense_layer_ids=[],
        sparse_layer_ids=[0, 1, 2],
        disable_value_sparse_layer_ids=[0, 1, 2],
        device="cpu",
        start_layer=0,
        end_layer=3,
    )


def _latents(kind: Any, slots: int, page: int, dtype: Any) -> Any:
    return kind(slots, page, dtype, 24, 8, 3, "cpu", False)


def _heads_first(slots: int, page: int, heads: int) -> Any:
    with envs.SGLANG_USE_HND_KVCACHE.override(True):
        return MHATokenToKVPool(slots, page, BF16, heads, 8, 3, "cpu", False)
