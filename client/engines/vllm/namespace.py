"""What determines a page's bytes besides its tokens, out of vLLM's configuration: the namespaces of its groups.

vLLM's block hashes cover tokens, LoRA, multimodal items and salt. The rest has to be here: two engines that differ in
any of it must not share a page.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from pagetier.client.keys import Namespace

_CPUINFO: Final = Path("/proc/cpuinfo")
_COMMIT: Final = re.compile("[0-9a-f]{40,64}")
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 1 << 14
_CONV_LAYOUT: Final = "VLLM_SSM_CONV_STATE_LAYOUT"
_SHUFFLED: Final = "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT"
_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


class PageShape(msgspec.Struct, frozen=True):
    """What a page of one group is, as all workers have to agree on.

    layout, nbytes: of its PageLayout. backends: whose kernels read and write its layers.
    """

    layout: str
    nbytes: int
    backends: tuple[str, ...] = ()


def namespace_of(config: Any, group: Any, shape: PageShape, salt: str) -> Namespace:
    """Of one group. config: VllmConfig. group: KVCacheGroupSpec."""
    model = config.model_config
    return Namespace(
        model=str(model.model),
        revision=_spelt(_weights(model) | {"load": str(getattr(config.load_config, "load_format", ""))}),
        dtype=str(model.dtype).removeprefix("torch."),
        page_tokens=group.kv_cache_spec.block_size,
        group=_spelt(
            {
                "layers": list(group.layer_names),
                "hashes": _hashes(config.cache_config),
                "state": _state(group),
                "backends": [list(shape.backends), os.environ.get(_SHUFFLED, "")],
                "processor": _processor(config),
                "multimodal": _multimodal(model),
            }
        ),
        layout=shape.layout,
        rope=_spelt(_rope(model)),
        quantisation=_spelt(_quantisation(config)),
        salt=salt,
    )


def with_adapter(namespace: Namespace, adapter: Any, engine: str) -> Namespace:
    """Of requests with a LoRA (a LoRARequest), which are this engine's alone, given by a text of its own.

    vLLM's hashes have an adapter's name alone. What it means in another engine, or after its files were replaced under
    an engine that has it in memory, nobody can tell.
    """
    told = [engine, adapter.lora_int_id, adapter.lora_name, str(getattr(adapter, "lora_path", ""))]
    return msgspec.structs.replace(namespace, lora=_spelt(told))


def backends_of(config: Any, group: Any) -> tuple[str, ...]:
    """Of a group's layers, once these are made: two backends may give caches of one shape different meanings."""
    layers = getattr(config.compilation_config, "static_forward_context", {})
    backends = (layers[name].get_attn_backend() for name in group.layer_names if name in layers)
    return tuple(sorted({f"{backend.__module__}.{backend.__qualname__}" for backend in backends}))


def is_known(model: Any) -> bool:
    """Whether the weights are told apart from others of the same name: by their files, or a commit of the hub's."""
    return bool(_files(Path(str(model.model)))) or _commit(model) is not None


def _commit(model: Any) -> str | None:
    """From 0.28 on the revision is a text like "main" that knows what it was resolved to."""
    resolved = getattr(model.revision, "resolved", None) or getattr(model.hf_config, "_commit_hash", None)
    exact = _COMMIT.fullmatch(str(model.revision or ""))
    return str(resolved) if resolved else exact[0] if exact else None


def _weights(model: Any) -> dict[str, object]:
    """Which weights: of a folder also what its files look like, as its name may come to mean others."""
    return {
        "engine": ["vllm", getattr(sys.modules.get("vllm"), "__version__", "")],
        "revision": [model.revision, _commit(model)],
        "config": sha256(_spelt(_settings(model.hf_config)).encode()).hexdigest(),
        "files": _files(Path(str(model.model))),
    }


def _files(weights: Path) -> list[list[object]]:
    """What the files of a folder, or the one file, look like; none of what is no path here."""
    folder = weights.iterdir() if weights.is_dir() else [weights] if weights.is_file() else []
    files = sorted(path for path in folder if path.suffix in _WEIGHTS)
    return [[path.name, *_looks(path)] for path in files]


def _looks(path: Path) -> list[object]:
    """With samples of the content: files of two images may have the same size and the same time."""
    status, digest = path.stat(), sha256()
    with path.open("rb") as file:
        for at in range(_SAMPLES + 1):
            file.seek(max(0, status.st_size - _SAMPLE_BYTES) * at // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return [status.st_size, status.st_mtime_ns, digest.hexdigest()]


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
    model = config.model_config
    told = [getattr(where, "quantization_config", None) for where in (model.hf_config, model)]
    return [model.quantization, *told, str(config.cache_config.cache_dtype)]


def _multimodal(model: Any) -> dict[str, object]:
    """What the engine says to the processor of images: the hashes have what a request says to it, and no more."""
    settings = getattr(model, "multimodal_config", None)
    if settings is None:
        return {}
    names = ("mm_processor_kwargs", "video_pruning_rate", "mm_encoder_attn_dtype", "media_io_kwargs")
    return {name: getattr(settings, name, None) for name in names}


def _processor(config: Any) -> list[str]:
    """The cache of a CPU is packed as its instructions like it; a disk may come back beside another one."""
    if getattr(getattr(config, "device_config", None), "device_type", "") != "cpu":
        return []
    flags = {flag for line in _CPUINFO.read_text().splitlines() if line.startswith("flags") for flag in line.split()}
    return [platform.machine(), *sorted(flag for flag in flags if flag.startswith(("amx", "avx512")))]


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
