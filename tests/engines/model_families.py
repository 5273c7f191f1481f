"""The KV cache specifications of model families, as their layers give them to vLLM, and vLLM's own plan of them.

Each family is a function of `scale`: 1 for the sizes of the models, 4 for a quarter of the tokens in a block, so that
short prompts have several pages. Layers are few, and heads narrow.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import pytest
import torch

pytest.importorskip("vllm.v1.kv_cache_layout", reason="tested from 0.32 on")

from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

try:
    from vllm.v1.core.kv_cache_planning import get_kv_cache_groups, validate_kv_cache_layout  # from 0.33 on
except ImportError:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups, validate_kv_cache_layout
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config

Layers: TypeAlias = dict[str, KVCacheSpec]

U8, BF16, F32 = torch.uint8, torch.bfloat16, torch.float32
_FP8: Final = {"dtype": U8, "cache_dtype_str": "fp8_ds_mla"}
_V4: Final = {**_FP8, "state_content_bytes": 584, "model_version": "deepseek_v4"}


def latent(block: int, width: int, **further: Any) -> MLAAttentionSpec:
    return MLAAttentionSpec(**{"block_size": block, "num_kv_heads": 1, "head_size": width, "dtype": BF16} | further)


def latent_window(block: int, width: int, tokens: int, **further: Any) -> SlidingWindowMLASpec:
    given = {"block_size": block, "num_kv_heads": 1, "head_size": width, "dtype": F32, "sliding_window": tokens}
    return SlidingWindowMLASpec(**given | further)


def attention(block: int, heads: int = 2, width: int = 64, **further: Any) -> FullAttentionSpec:
    given = {"block_size": block, "num_kv_heads": heads, "head_size": width, "dtype": BF16}
    return FullAttentionSpec(**given | further)


def ring(capacity: int, width: int, **further: Any) -> CircularBufferSpec:
    given = {"block_size": capacity, "num_kv_heads": 1, "head_size": width, "head_size_v": 0, "dtype": F32}
    return CircularBufferSpec(**given | further)


def state(block: int, *shapes: tuple[int, ...], **further: Any) -> MambaSpec:
    return MambaSpec(block, shapes, (BF16,) * len(shapes), mamba_cache_mode="align", **further)


def latents(scale: int) -> Layers:
    return {f"{at}.attn": latent(64 // scale, 576) for at in range(3)}


def deepseek_v32(scale: int) -> Layers:
    layers: Layers = {}
    for at in range(3):
        layers[f"{at}.attn"] = latent(64 // scale, 576, state_content_bytes=656, **_FP8)
        layers[f"{at}.indexer"] = latent(64 // scale, 132, dtype=U8)
    return layers


def nvfp4_latents(scale: int) -> Layers:
    given = {"state_content_bytes": 352, "dtype": U8, "cache_dtype_str": "nvfp4_ds_mla"}
    return {f"{at}.attn": latent(64 // scale, 576, **given) for at in range(3)}


def deepseek_v4(scale: int) -> Layers:
    layers: Layers = {}
    for at, ratio in enumerate([0, 0, 4, 128 // scale, 4, 128 // scale]):
        layers[f"{at}.window"] = latent_window(64 // scale, 512, 128 // scale, alignment=576, **_V4)
        if ratio:
            states = (4, 2048, 8) if ratio == 4 else (8, 1024, 128 // scale)
            layers[f"{at}.attn"] = latent(256 // scale, 512, tokens_per_state=ratio, alignment=576, **_V4)
            layers[f"{at}.state"] = latent_window(*states, alignment=576)
        if ratio == 4:
            layers[f"{at}.indexer"] = latent(256 // scale, 132, tokens_per_state=4, alignment=576, dtype=U8)
            layers[f"{at}.indexer.state"] = latent_window(4, 512, 8, alignment=576)
    return layers


def deepseek_v41(scale: int) -> Layers:
    """The windows are computed again after a hit, and the open group of a request is in a ring."""
    layers: Layers = {}
    for at, ratio in enumerate([1, 2, 4, 2]):
        layers[f"{at}.window"] = latent_window(
            64 // scale, 512, 128 // scale, alignment=512, bounded_replay=True, **_V4
        )
        layers[f"{at}.attn"] = latent(256 // scale, 512, tokens_per_state=ratio, alignment=512, **_V4)
        layers[f"{at}.indexer"] = latent(256 // scale, 132, tokens_per_state=ratio, alignment=512, dtype=U8)
        if ratio > 1:
            layers[f"{at}.ring"] = ring(8, 1024)
    return layers


def qwen4(scale: int) -> Layers:
    """GQA with compressed keys, gated delta, and a state that all ranks have."""
    layers: Layers = {"ple": state(128 // scale, (512, 3), tp_replicated=True)}
    for at in range(6):
        if at % 3:
            layers[f"{at}.delta"] = state(128 // scale, (3, 64), (4, 16, 16))
            continue
        layers[f"{at}.attn"] = attention(128 // scale)
        layers[f"{at}.keys"] = latent(128 // scale, 128, tokens_per_state=16)
        layers[f"{at}.ring"] = ring(16, 64)
    return layers


def glm5_next(scale: int) -> Layers:
    layers: Layers = {}
    for at in range(3):
        layers[f"{at}.attn"] = latent(128 // scale, 576, state_content_bytes=656, **_FP8)
        layers[f"{at}.indexer"] = latent(128 // scale, 132, tokens_per_state=4, dtype=U8)
        layers[f"{at}.tail"] = ring(4, 128, num_kv_heads=2, dtype=BF16, dcp_sharded=False)
    return layers


def step5(scale: int) -> Layers:
    layers: Layers = {}
    for at in range(4):
        given = {"block_size": 128 // scale, "num_kv_heads": 2, "head_size": 64, "dtype": BF16}
        if at % 2:
            layers[f"{at}.window"] = SlidingWindowSpec(sliding_window=256 // scale, **given)
            continue
        layers[f"{at}.attn"] = attention(128 // scale)
        layers[f"{at}.summary"] = attention(128 // scale, 1, 256, head_size_v=0, dtype=U8, tokens_per_state=8)
        layers[f"{at}.tail"] = ring(128 // scale, 256, dtype=BF16)
    return layers


def minimax_m3(scale: int) -> Layers:
    layers: Layers = {}
    for at in range(3):
        layers[f"{at}.attn"] = attention(128 // scale)
        layers[f"{at}.indexer"] = latent(128 // scale, 128)
    return layers


def kimi_k3(scale: int) -> Layers:
    layers: Layers = {}
    for at in range(4):
        layers[f"{at}"] = (
            latent(64 // scale, 576, state_content_bytes=656, **_FP8)
            if at == 3
            else state(64 // scale, (3, 128), (4, 32, 32))
        )
    return layers


_LEAVES_CHECKPOINTS: Final = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 1}
"""A step that ends a prompt also leaves the state at the end of its last full block."""


def mamba2(scale: int) -> Layers:
    return {f"{at}": state(128 // scale, (3, 64), (4, 16, 16), **_LEAVES_CHECKPOINTS) for at in range(3)}


def falcon_h1(scale: int) -> Layers:
    layers = mamba2(scale)
    return layers | {f"{at}.attn": attention(128 // scale) for at in range(3)}


FAMILIES: Final[dict[str, Callable[[int], Layers]]] = {
    "latents alone": latents,
    "DeepSeek V3.2, GLM-5": deepseek_v32,
    "DeepSeek V4": deepseek_v4,
    "DeepSeek V4.1": deepseek_v41,
    "Qwen4": qwen4,
    "GLM-5-next": glm5_next,
    "Step5": step5,
    "MiniMax-M3": minimax_m3,
    "Kimi K3": kimi_k3,
    "latents in NVFP4": nvfp4_latents,
    "Falcon-H1, Nemotron-H on a GPU": falcon_h1,
    "Mamba 2 on a GPU": mamba2,
}
"""By the names that the documentation uses."""


def planned_groups(layers: Layers, layout: KVCacheLayout = KVCacheLayout.BLHNC) -> list[KVCacheGroupSpec]:
    """Returns the groups that vLLM plans for layers.

    Raises:
        ValueError: This memory order cannot express them.
    """
    settings: dict[str, Any] = {
        "scheduler_config": {"disable_hybrid_kv_cache_manager": False},
        "attention_config": {"hisparse_config": None},
        "parallel_config": {"decode_context_parallel_size": 1, "tensor_parallel_size": 1},
        "model_config": {"max_model_len": 8192},
        "cache_config": {
            "get_resolved_kv_cache_layout": lambda: layout,
            "mamba_cache_mode": "align",
            "enable_prefix_caching": True,
            "prefix_cache_retention_interval": None,
            "num_gpu_blocks_override": None,
        },
    }
    config = SimpleNamespace(
        **{name: SimpleNamespace(**given) for name, given in settings.items()},
        kv_transfer_config=object(),
        speculative_config=None,
        max_in_flight_tokens=2048,
    )
    groups: list[KVCacheGroupSpec] = get_kv_cache_groups(config, dict(layers))
    validate_kv_cache_layout(layout, groups)
    return groups


def accepted_layouts(family: str) -> list[KVCacheLayout]:
    """Returns the memory orders in which vLLM lays out a family."""
    return [layout for layout in KVCacheLayout if _accepts(layout, FAMILIES[family](1))]


def _accepts(layout: KVCacheLayout, layers: Layers) -> bool:
    try:
        planned_groups(layers, layout)
    except (AssertionError, ValueError, NotImplementedError):
        return False
    return True


def scheduler_groups(family: str, blocks: int) -> KVCacheConfig:
    """Returns the groups of a family as vLLM gives them to its scheduler, in small blocks."""
    whole: KVCacheConfig = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=planned_groups(FAMILIES[family](4))
    )
    return generate_scheduler_kv_cache_config([whole])
