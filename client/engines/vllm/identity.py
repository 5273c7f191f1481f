"""What determines a page's bytes besides its tokens, out of vLLM's configuration: the namespaces of its groups.

vLLM's block hashes cover tokens, LoRA, multimodal items and salt. The rest has to be here: two engines that differ in
any of it must not share a page.
"""

from __future__ import annotations

import json
import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from ...keys import Namespace

_CONV_LAYOUT: Final = "VLLM_SSM_CONV_STATE_LAYOUT"
_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


class PageShape(msgspec.Struct, frozen=True):
    """What a page of one group is, as all workers have to agree on: the layout of its PageOrder, and its bytes."""

    layout: str
    nbytes: int


def namespace_of(config: Any, group: Any, shape: PageShape, salt: str) -> Namespace:
    """Of one group. config: VllmConfig. group: KVCacheGroupSpec."""
    model = config.model_config
    return Namespace(
        model=str(model.model),
        revision=_spelt(_weights(model) | {"load": str(getattr(config.load_config, "load_format", ""))}),
        dtype=str(model.dtype).removeprefix("torch."),
        page_tokens=group.kv_cache_spec.block_size,
        group=_spelt(
            {"layers": list(group.layer_names), "hashes": _hashes(config.cache_config), "state": _state(group)}
        ),
        layout=shape.layout,
        rope=_spelt(_rope(model)),
        quantisation=_spelt(_quantisation(config)),
        salt=salt,
    )


def with_adapter(namespace: Namespace, adapter: Any) -> Namespace:
    """Of requests with a LoRA: vLLM's hashes have its name alone, and that may mean others in another engine.

    adapter: LoRARequest, or None.
    """
    if adapter is None:
        return namespace
    path = str(getattr(adapter, "lora_path", ""))
    return msgspec.structs.replace(namespace, lora=_spelt([adapter.lora_name, path, _files(Path(path))]))


def _weights(model: Any) -> dict[str, object]:
    """Which weights: of a folder also what its files look like, as its name may come to mean others."""
    return {
        "engine": ["vllm", getattr(sys.modules.get("vllm"), "__version__", "")],
        "revision": [model.revision, getattr(model.hf_config, "_commit_hash", None)],
        "config": sha256(_spelt(_settings(model.hf_config)).encode()).hexdigest(),
        "files": _files(Path(str(model.model))),
    }


def _files(weights: Path) -> list[list[object]]:
    """What the files of a folder, or the one file, look like; none of what is no path here."""
    folder = weights.iterdir() if weights.is_dir() else [weights] if weights.is_file() else []
    files = sorted(path for path in folder if path.suffix in _WEIGHTS)
    return [[path.name, status.st_size, status.st_mtime_ns] for path in files for status in [path.stat()]]


def _state(group: Any) -> list[str]:
    """What is in the bytes of a state, or of a quantised cache, which show no dtype of their own."""
    spec = group.kv_cache_spec
    fields = ("shapes", "dtypes", "mamba_type", "kv_quant_mode", "sliding_window")
    return [f"{name} {getattr(spec, name, None)}" for name in fields] + [os.environ.get(_CONV_LAYOUT, "")]


def _rope(model: Any) -> dict[str, object]:
    """With the length: some kinds of rotary embedding are scaled by it."""
    text = getattr(model, "hf_text_config", model.hf_config)
    names = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor")
    return {name: getattr(text, name, None) for name in names} | {"length": model.max_model_len}


def _quantisation(config: Any) -> list[object]:
    """Of the weights, and of the cache."""
    of_weights = getattr(config.model_config.hf_config, "quantization_config", None)
    return [config.model_config.quantization, of_weights, str(config.cache_config.cache_dtype)]


def _hashes(cache: Any) -> list[str]:
    return [str(getattr(cache, "prefix_caching_hash_algo", "")), os.environ.get("PYTHONHASHSEED", "")]


def _settings(config: Any) -> Any:
    """Without where it was read from: that is said by the model's name."""
    settings = config.to_dict() if hasattr(config, "to_dict") else dict(vars(config))
    return {name: value for name, value in settings.items() if name not in ("_name_or_path", "transformers_version")}


def _spelt(settings: object) -> str:
    """In one spelling."""
    return json.dumps(settings, sort_keys=True, default=_plain)


def _plain(other: Any) -> Any:
    return other.to_dict() if hasattr(other, "to_dict") else str(other)
