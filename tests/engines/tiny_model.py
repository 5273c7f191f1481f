"""Makes tiny models with seeded random weights, each in a folder: an engine loads one within a second.

A recipe takes `(folder, seed=0, **overrides)`. The overrides go into the model's config (`rope_theta=500.0`);
everything else is identical. `make` builds a model once, in a folder of `CACHE`, with a tokenizer of whole words.
"""

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

Recipe = Callable[..., Path]
Weights = dict[str, Any]

QKV = ("q_proj.weight", "k_proj.weight", "v_proj.weight")

CACHE = Path(__file__).parents[2] / ".cache" / "engines"

WORDS = 1000
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>", "<system>", "<user>", "<assistant>", "<end>", "<tool>")
IMAGE = len(SPECIAL) + WORDS
"""The token that stands for an image in a prompt for `idefics3`."""
IMAGE_SIDE = 224
"""The width and the height of its images, in pixels."""
IMAGE_TOKENS = 67
"""The tokens of an image: one for each 28 x 28 pixels, and three around them."""
VOCABULARY = 1024
LENGTH = 16384

# A turn has the same text when it is part of the next prompt, so that prefixes grow turn by turn.
CHAT = (
    "<bos>{% for message in messages %}<{{ message.role }}> {{ message.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.09,  # near 1 / sqrt(hidden_size), so that each layer contributes
}


def llama(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with full attention in every layer and grouped queries."""
    from transformers import LlamaConfig

    return save(folder, seed, LlamaConfig, {"num_hidden_layers": 2, "head_dim": 32}, overrides)


def gemma3(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with four layers of a sliding window and two of full attention: three groups that share tensors."""
    from transformers import Gemma3TextConfig

    own = {
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "sliding_window": 256,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
    }
    return save(folder, seed, Gemma3TextConfig, own, overrides)


def gpt_oss(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with alternating window and full attention, attention sinks, and experts without quantisation."""
    from transformers import GptOssConfig

    own = {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 128,
        "head_dim": 64,
        "max_position_embeddings": 131072,  # a result of its RoPE scaling
        "intermediate_size": 128,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    return save(folder, seed, GptOssConfig, own, overrides)


def qwen3_next(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with four layers of recurrent state (gated delta nets) and two of full attention."""
    from transformers import Qwen3NextConfig

    own = {
        "num_hidden_layers": 6,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
        "full_attention_interval": 3,
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
    }
    return save(folder, seed, Qwen3NextConfig, own, overrides)


def deepseek(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with multi-head latent attention of 512 + 64 elements, the only size of the CPU's kernel."""
    from transformers import DeepseekV2Config

    own = {
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "first_k_dense_replace": 2,
    }
    return save(folder, seed, DeepseekV2Config, own, overrides)


def llama4(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with two layers of attention within chunks, two of full attention, and experts."""
    from transformers import Llama4TextConfig

    own = {
        "num_hidden_layers": 4,
        "head_dim": 32,
        "attention_chunk_size": 256,
        "no_rope_layers": [1, 0, 1, 0],  # a layer with RoPE attends within chunks
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 256,
        "interleave_moe_layer_step": 2,
        "use_qk_norm": False,
    }
    return save(folder, seed, Llama4TextConfig, own, overrides)


def glm4_moe(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model with full attention, experts, and a further layer that guesses the next tokens (MTP)."""
    from transformers import Glm4MoeConfig

    own = {
        "num_hidden_layers": 2,
        "head_dim": 32,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "n_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 1,
        "use_qk_norm": False,
    }
    return _rewritten(save(folder, seed, Glm4MoeConfig, own, overrides), _with_next_token_layer)


def eagle(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a draft model for `llama`: one layer over a token and the hidden state before it (EAGLE)."""
    from transformers import LlamaConfig

    made = save(folder, seed, LlamaConfig, {"num_hidden_layers": 1, "head_dim": 32}, overrides)
    return _rewritten(made, _of_eagle)


def eagle3(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a draft model for `llama`: one layer over a token and the hidden states of three layers (EAGLE-3)."""
    from transformers import LlamaConfig

    own = {"num_hidden_layers": 1, "head_dim": 32, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    own |= {"draft_vocab_size": VOCABULARY}
    return _rewritten(save(folder, seed, LlamaConfig, own, overrides), _of_eagle3)


def idefics3(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a model that reads images: a vision tower before a model like `llama`."""
    from transformers import AutoModelForImageTextToText, Idefics3Config, LlamaConfig

    vision = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    own = {
        "vision_config": vision | {"image_size": IMAGE_SIDE, "patch_size": 14},
        "text_config": LlamaConfig(**(COMMON | {"num_hidden_layers": 2, "head_dim": 32})),
        "image_token_id": IMAGE,
        "scale_factor": 2,
        "pad_token_id": 0,
    }
    made = _save_model(folder, seed, AutoModelForImageTextToText, Idefics3Config(**(own | overrides)))
    _save_tokenizer(made, "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
    side = {"longest_edge": IMAGE_SIDE}
    images = {"image_processor_type": "Idefics3ImageProcessor", "size": side, "max_image_size": side}
    (made / "preprocessor_config.json").write_text(json.dumps(images | {"do_image_splitting": False}))
    processor = {"processor_class": "Idefics3Processor", "image_seq_len": IMAGE_TOKENS - 3}
    (made / "processor_config.json").write_text(json.dumps(processor))
    return made


def adapter(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Makes a LoRA adapter for `llama`."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "r": 8, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings | overrides))
    torch.manual_seed(seed)
    weights: Weights = {}
    for layer, (name, rows) in itertools.product(range(2), (("q_proj", 128), ("v_proj", 64))):
        place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
        weights |= {f"{place}.lora_A.weight": _random(8, 128), f"{place}.lora_B.weight": _random(rows, 8)}
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


RECIPES: dict[str, Recipe] = {
    "llama": llama,
    "gemma3": gemma3,
    "gpt_oss": gpt_oss,
    "qwen3_next": qwen3_next,
    "deepseek": deepseek,
    "llama4": llama4,
    "glm4_moe": glm4_moe,
}

OTHERS: dict[str, Recipe] = {"eagle": eagle, "eagle3": eagle3, "adapter": adapter, "idefics3": idefics3}

# Arguments that an engine of this model needs on a CPU. Up to 0.28 its kernels support recurrent state only in float32.
SETTINGS: dict[str, dict[str, Any]] = {"qwen3_next": {"block_size": 256, "mamba_ssm_cache_dtype": "float32"}}

# The models of `make test-engines`; with ALL=1 it runs the others, too.
FEW = ("llama", "qwen3_next")


def chosen() -> list[str]:
    """Returns the names of the models to test with."""
    return list(RECIPES if os.environ.get("ALL") else FEW)


def make(name: str, cache: Path = CACHE, seed: int = 0, **overrides: Any) -> Path:
    """Builds the model in its own folder of `cache`, unless it exists. Returns the folder."""
    recipe = json.dumps([Path(__file__).read_text(), name, seed, overrides], sort_keys=True)
    folder = cache / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = cache / f".{folder.name}.{os.getpid()}"
        (RECIPES | OTHERS)[name](unfinished, seed, **overrides)
        _put(unfinished, folder)
    return folder


def _put(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:  # another process was faster and made the same model
        shutil.rmtree(unfinished)


def save(folder: Path, seed: int, config_type: Any, own: dict[str, Any], overrides: dict[str, Any]) -> Path:
    from transformers import AutoModelForCausalLM

    _save_model(folder, seed, AutoModelForCausalLM, config_type(**(COMMON | own | overrides)))
    _save_tokenizer(folder)
    return folder


def _save_model(folder: Path, seed: int, model_type: Any, config: Any) -> Path:
    import torch

    torch.manual_seed(seed)
    model = model_type.from_config(config).to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    return folder


def _rewritten(folder: Path, rewrite: Callable[[Weights], Weights]) -> Path:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    save_file(rewrite(load_file(file)), file, metadata={"format": "pt"})
    return folder


def _with_next_token_layer(weights: Weights) -> Weights:
    """Adds a layer after the last one, with the names of GLM's checkpoints."""
    last, further = "model.layers.1.", "model.layers.2."
    copies = {name.replace(last, further): one.clone() for name, one in weights.items() if name.startswith(last)}
    own = {f"{further}{name}.weight": _ones() for name in ("enorm", "hnorm", "shared_head.norm")}
    own[f"{further}eh_proj.weight"] = _random(128, 256)
    own[f"{further}shared_head.head.weight"] = weights["lm_head.weight"].clone()
    own[f"{further}embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
    return weights | copies | own


def _of_eagle(weights: Weights) -> Weights:
    layers = {name.removeprefix("model."): one for name, one in weights.items() if name.startswith("model.layers.")}
    kept = {name: one for name, one in layers.items() if "input_layernorm" not in name}
    return kept | {"fc.weight": _random(128, 256)}


def _of_eagle3(weights: Weights) -> Weights:
    layer = {
        name.replace("model.layers.0", "midlayer"): _random(len(one), 256) if name.endswith(QKV) else one
        for name, one in weights.items()
        if name.startswith("model.layers.")
    }
    norms = {name: _ones() for name in ("midlayer.hidden_norm.weight", "norm.weight")}
    return layer | norms | {"lm_head.weight": weights["lm_head.weight"], "fc.weight": _random(128, 384)}


def _ones() -> Any:
    import torch

    return torch.ones(COMMON["hidden_size"], dtype=torch.bfloat16)


def _random(*shape: int) -> Any:
    """Returns random weights. The model before has seeded the generator."""
    import torch

    return (torch.randn(*shape) * COMMON["initializer_range"]).to(torch.bfloat16)


def _save_tokenizer(folder: Path, *further: str) -> None:
    """Saves a tokenizer of whole words, and of further special tokens after them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = [*SPECIAL, *(f"w{number}" for number in range(WORDS)), *further]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("w", " w"), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([*SPECIAL, *further])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": LENGTH,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "chat_template": CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
