"""The configurations of known models, as their repositories have them, without what SGLang needs for weights only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

_COMMON: Final = {"vocab_size": 1024, "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6}

_GPT_OSS_LAYERS: Final = ["sliding_attention", "full_attention"] * 12

_CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "Llama 3.1 8B": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
    },
    "Qwen2.5 0.5B": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "num_hidden_layers": 24,
    },
    "Qwen2.5 7B": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "num_hidden_layers": 28,
    },
    "DeepSeek V3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "num_hidden_layers": 61,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
    },
    "gemma-3-4b": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": 34,
        "head_dim": 256,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
    "Qwen3-Next": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "num_hidden_layers": 48,
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "num_experts": 512,
        "num_experts_per_tok": 10,
    },
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "num_hidden_layers": 24,
        "head_dim": 64,
        "sliding_window": 128,
        "layer_types": _GPT_OSS_LAYERS,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
    },
}


def write_model_config(folder: Path, name: str) -> Path:
    """Writes the configuration of a model into a new folder, and returns the folder."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(_COMMON | _CONFIGS[name]))
    return folder
