"""Simulated configurations of vLLM for tests of namespaces and of the connector's start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm_caches import FullAttentionSpec


class Config:
    """A configuration with the methods of transformers' configurations."""

    def __init__(self, **settings: Any) -> None:
        vars(self).update(settings)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def vllm_config(model: str = "org/model") -> Any:
    hf = Config(rope_theta=10000.0, layers=2, _name_or_path="anywhere", transformers_version="5.0")
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=model, revision=None, dtype="torch.bfloat16", hf_config=hf, max_model_len=4096, quantization=None
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", prefix_caching_hash_algo="sha256"),
        load_config=SimpleNamespace(load_format="auto"),
    )


def group(block: int = 16, layers: tuple[str, ...] = ("layers.0", "layers.1")) -> Any:
    return SimpleNamespace(kv_cache_spec=FullAttentionSpec(block), layer_names=layers)
