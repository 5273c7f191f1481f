"""Makes tiny models of further families, of which only the answers are compared (test_market_models.py).

Their recipes are as in tiny_model.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tiny_model import save

_WINDOWS: Final = ["sliding_attention", "sliding_attention", "full_attention"] * 2
_STATES: Final = ["linear_attention", "linear_attention", "full_attention"] * 2


def qwen3(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with full attention in every layer, and norms of queries and keys."""
    from transformers import Qwen3Config

    return save(folder, seed, Qwen3Config, {"num_hidden_layers": 2, "head_dim": 32}, overrides)


def minimax_m2(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with full attention and experts. On a CPU vLLM routes to experts without groups by softmax only."""
    from transformers import MiniMaxM2Config

    own: dict[str, Any] = {"num_hidden_layers": 2, "head_dim": 32, "intermediate_size": 128}
    own |= {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 16}
    own |= {"scoring_func": "softmax", "use_routing_bias": True}
    return save(folder, seed, MiniMaxM2Config, own, overrides)


def mistral(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with a window in every layer."""
    from transformers import MistralConfig

    return save(folder, seed, MistralConfig, {"num_hidden_layers": 2, "head_dim": 32, "sliding_window": 256}, overrides)


def olmo3(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with four layers of a window and two of full attention, and norms behind the layers."""
    from transformers import Olmo3Config

    own = {"num_hidden_layers": 6, "layer_types": _WINDOWS, "sliding_window": 256}
    return save(folder, seed, Olmo3Config, own, overrides)


def cohere2_moe(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with windows, full attention without positions, and experts."""
    from transformers import Cohere2MoeConfig

    own = {"num_hidden_layers": 6, "layer_types": _WINDOWS, "sliding_window": 256, "head_dim": 32}
    own |= {"num_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": True}
    return save(folder, seed, Cohere2MoeConfig, own, overrides)


def exaone4(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with windows, and full attention without positions."""
    from transformers import Exaone4Config

    own = {"num_hidden_layers": 6, "layer_types": _WINDOWS, "sliding_window": 256, "sliding_window_pattern": 3}
    return save(folder, seed, Exaone4Config, own, overrides)


def gemma3n(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with six layers, of which the last three read the keys and values of earlier ones."""
    from transformers import Gemma3nTextConfig

    own = {"num_hidden_layers": 6, "layer_types": _WINDOWS, "sliding_window": 256, "head_dim": 32}
    own |= {"num_kv_shared_layers": 3, "vocab_size_per_layer_input": 1024, "hidden_size_per_layer_input": 16}
    own |= {"laurel_rank": 8, "activation_sparsity_pattern": [0.0] * 6, "tie_word_embeddings": True}
    return save(folder, seed, Gemma3nTextConfig, own, overrides)


def gemma4(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with windows, and full attention whose heads are twice as wide."""
    from transformers import Gemma4TextConfig

    own = {"num_hidden_layers": 6, "layer_types": _WINDOWS, "sliding_window": 256, "head_dim": 32}
    own |= {"global_head_dim": 64, "vocab_size_per_layer_input": 1024, "hidden_size_per_layer_input": 16}
    own |= {"num_kv_shared_layers": 0, "tie_word_embeddings": True}
    return save(folder, seed, Gemma4TextConfig, own, overrides)


def deepseek_v3(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with latent attention and experts in groups."""
    from transformers import DeepseekV3Config

    own = {
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "kv_lora_rank": 512,
        "q_lora_rank": 64,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
    }
    return save(folder, seed, DeepseekV3Config, own, overrides)


def glm4_moe_lite(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with latent attention and experts."""
    from transformers import Glm4MoeLiteConfig

    own = {
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "q_lora_rank": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "mlp_layer_types": ["dense", "sparse"],
        "first_k_dense_replace": 1,
        "topk_method": "noaux_tc",
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
    }
    return save(folder, seed, Glm4MoeLiteConfig, own, overrides)


def lfm2(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with short convolutions, whose state is recurrent, and full attention."""
    from transformers import Lfm2Config

    own = {"num_hidden_layers": 6, "layer_types": ["conv", "conv", "full_attention"] * 2}
    own |= {"conv_dim": 128, "conv_dim_out": 128, "block_dim": 128, "block_auto_adjust_ff_dim": False}
    return save(folder, seed, Lfm2Config, own, overrides)


_DELTA: Final = {
    "num_hidden_layers": 6,
    "layer_types": _STATES,
    "full_attention_interval": 3,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}


def qwen3_5(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with gated delta nets and full attention."""
    from transformers import Qwen3_5TextConfig

    return save(folder, seed, Qwen3_5TextConfig, dict(_DELTA), overrides)


def qwen3_5_moe(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with gated delta nets, full attention and experts."""
    from transformers import Qwen3_5MoeTextConfig

    own = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    own |= {"shared_expert_intermediate_size": 128}
    return save(folder, seed, Qwen3_5MoeTextConfig, _DELTA | own, overrides)


def falcon_h1(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with full attention beside Mamba 2 in every layer."""
    from transformers import FalconH1Config

    own = {"num_hidden_layers": 2, "mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 32}
    return save(folder, seed, FalconH1Config, own, overrides)


def nemotron_h(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with layers of Mamba 2, of full attention and of neither."""
    from transformers import NemotronHConfig

    own = {
        "layers_block_type": ["mamba", "attention", "mamba", "mlp"],
        "head_dim": 32,
        "ssm_state_size": 32,
        "mamba_num_heads": 4,
        "mamba_head_dim": 64,
        "n_groups": 1,
    }
    return save(folder, seed, NemotronHConfig, own, overrides)


def mamba2(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with no attention."""
    from transformers import Mamba2Config

    own = {"num_hidden_layers": 2, "num_heads": 4, "head_dim": 64, "state_size": 32, "n_groups": 1}
    return save(folder, seed, Mamba2Config, own, overrides)


class MarketModel(NamedTuple):
    """A model to compare, and the row of it in the documentation.

    Attributes:
        title: Its name.
        state: The kinds of its state.
        recipe: Makes it.
        page: The tokens after which all of its groups have whole pages.
        engine: Arguments that vLLM needs for it on a CPU.
        extra: Settings of pagetier.
    """

    title: str
    state: str
    recipe: Callable[..., Path]
    page: int = 128
    engine: Mapping[str, Any] = MappingProxyType({})
    extra: Mapping[str, Any] = MappingProxyType({})

    @property
    def has_own_cache(self) -> bool:
        """Whether vLLM has a prefix cache for it on each CPU."""
        return not self.extra


_FULL: Final = "full attention"
_WINDOWED: Final = "full attention, windows"
_HYBRID: Final = "full attention, recurrent states"
_SHORT_STEPS: Final = {"block_size": 256, "max_num_batched_tokens": 256, "max_num_seqs": 16}
"""On a CPU vLLM's Mamba 2 fails (IndexError) in a step that leaves a state within it, as one of two blocks does."""
_ALWAYS: Final = {"prefix_caching": "always"}
"""Without AMX vLLM switches its prefix cache off for latents, and gives them blocks of 16 tokens."""

MODELS: Final = {
    "qwen3": MarketModel("Qwen3", _FULL, qwen3),
    "qwen3_fp8": MarketModel("Qwen3 with `--kv-cache-dtype fp8`", _FULL, qwen3, engine={"kv_cache_dtype": "fp8"}),
    "minimax_m2": MarketModel("MiniMax-M2", _FULL, minimax_m2),
    "mistral": MarketModel("Mistral", "windows", mistral),
    "olmo3": MarketModel("Olmo 3", _WINDOWED, olmo3),
    "cohere2_moe": MarketModel("Cohere 2 MoE", _WINDOWED, cohere2_moe),
    "exaone4": MarketModel("EXAONE 4", _WINDOWED, exaone4),
    "gemma3n": MarketModel("Gemma 3n", _WINDOWED, gemma3n),
    "gemma4": MarketModel("Gemma 4", _WINDOWED, gemma4, 256),
    "lfm2": MarketModel("LFM2", _HYBRID, lfm2, 256, {"block_size": 256}),
    "qwen3_5": MarketModel("Qwen3.5", _HYBRID, qwen3_5, 256, {"block_size": 256}),
    "qwen3_5_moe": MarketModel("Qwen3.5-MoE", _HYBRID, qwen3_5_moe, 256, {"block_size": 256}),
    "falcon_h1": MarketModel("Falcon-H1", _HYBRID, falcon_h1, 256, _SHORT_STEPS),
    "nemotron_h": MarketModel("Nemotron-H", _HYBRID, nemotron_h, 256, _SHORT_STEPS),
    "mamba2": MarketModel("Mamba 2", "recurrent states", mamba2, 256, {**_SHORT_STEPS, "enable_prefix_caching": True}),
    "deepseek_v3": MarketModel("DeepSeek V3", "latents", deepseek_v3, 432, extra=_ALWAYS),
    "glm4_moe_lite": MarketModel("GLM-4.7-Flash", "latents", glm4_moe_lite, 432, extra=_ALWAYS),
}
"""By the names of their architectures."""


def make_torchvision(folder: Path) -> Path:
    """Makes an empty `torchvision`, which vLLM's Qwen3.5 imports also for text. Returns the folder for PYTHONPATH."""
    for name in ("", "io", "transforms", "transforms/functional", "transforms/v2", "transforms/v2/functional"):
        module = folder / "torchvision" / name
        module.mkdir(parents=True, exist_ok=True)
        (module / "__init__.py").write_text(_TORCHVISION)
    return folder


_TORCHVISION: Final = '''"""Stands in for torchvision where no image is read."""

from unittest.mock import MagicMock

__version__ = "0.28.0"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock()
'''
