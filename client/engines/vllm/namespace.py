"""Derives the namespaces of the groups from vLLM's configuration: everything besides the tokens that determines a page.

vLLM's block hashes cover tokens, LoRA adapters, multimodal items and the cache salt. Everything else must be in the
namespace, because engines that differ in it must not share pages.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from pagetier.client.client import Client
from pagetier.client.engines.file_digests import digest_of_setting
from pagetier.client.engines.vllm.draft_model import draft_model_of
from pagetier.client.engines.vllm.group_kinds import layer_specs
from pagetier.client.engines.vllm.rank_share import ContextShare
from pagetier.client.engines.weights import ModelIdentity
from pagetier.client.keys import Namespace
from pagetier.kernels.layout.page_layout import PageLayout

_CPUINFO: Final = Path("/proc/cpuinfo")
_FLUSH_TIMEOUT_S: Final = 5.0  # for the response to a flush, before the next one is sent
_TUNING: Final = "attn_temperature_tuning"
_ORIGIN: Final = ("_name_or_path", "_commit_hash", "transformers_version")
_SET_BY_DRAFTS: Final = ("draft_vocab_size", "target_layer_count")  # by the process that loads an EAGLE-3 draft
_NOT_READ: Final = (*_ORIGIN, *_SET_BY_DRAFTS, _TUNING)
_CONV_LAYOUT: Final = "VLLM_SSM_CONV_STATE_LAYOUT"
_SHUFFLED: Final = "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT"
_HUMMING: Final = ("VLLM_HUMMING_ONLINE_QUANT_CONFIG", "VLLM_HUMMING_INPUT_QUANT_CONFIG")
_QUANTISING: Final = ("VLLM_MARLIN_INPUT_DTYPE", *_HUMMING)
_MULTIMODAL: Final = ("mm_processor_kwargs", "video_pruning_rate", "mm_encoder_attn_dtype", "media_io_kwargs")


class PageShape(msgspec.Struct, frozen=True):
    """A page of one group. All workers must agree on it.

    Attributes:
        page: Its content and the order of its bytes.
        backends: The attention backends whose kernels read and write its layers.
        layers: The layers whose state it has.
        context: The tokens whose state it has.
        number: The number of vLLM's group whose blocks it has; see cached_groups().
        formats: The formats of its layers, see formats_of(). Only the workers know the specifications of all layers:
            where they differ, vLLM gives its scheduler that of the first.
        blocks: vLLM's blocks in a page.
        scales: The digest of the file with the scales of an encoder in FP8 when the engine started; "" without one.
    """

    page: PageLayout
    backends: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    context: ContextShare = ContextShare()
    formats: tuple[str, ...] = ()
    blocks: int = 1
    number: int = 0
    scales: str = ""

    def of_blocks(self, blocks: int) -> PageShape:
        """Returns the shape of a page of so many blocks; this is that of a page of one block."""
        return msgspec.structs.replace(
            self, page=PageLayout(blocks * self.page.tokens, self.page.layers), blocks=blocks
        )


def namespace_of(config: Any, group: Any, shape: PageShape, identity: ModelIdentity, salt: str) -> Namespace:
    """Returns the namespace of one group.

    Args:
        config: vLLM's VllmConfig.
        group: vLLM's KVCacheGroupSpec.
        shape: The page shape on which the workers agree.
        identity: The identity of the model.
        salt: The salt of the namespace.
    """
    model = config.model_config
    return Namespace(
        model=_architecture(model),
        revision=_canonical_json(_revision(config, identity.weights)),
        dtype=str(model.dtype).removeprefix("torch."),
        page_tokens=group.kv_cache_spec.block_size * shape.context.ranks * shape.blocks,
        group=_canonical_json(_group_settings(config, group, shape)),
        layout=shape.page.layout,
        rope=_canonical_json(_rope(model)),
        quantisation=_canonical_json(_quantisation(config)),
        salt=salt,
        title=identity.title,
    )


def _group_settings(config: Any, group: Any, shape: PageShape) -> dict[str, object]:
    settings: dict[str, object] = {
        # A page of as many tokens may be of fewer, larger blocks, whose bytes may be in another order.
        "block": group.kv_cache_spec.block_size,
        "layers": list(shape.layers),
        "hashes": _hashes(config.cache_config),
        "state": list(shape.formats),
        "backends": [list(shape.backends), os.environ.get(_SHUFFLED, "")],
        "processor": _processor(config),
        "multimodal": _multimodal(config.model_config) | ({"scales": shape.scales} if shape.scales else {}),
    }
    divided = shape.context.ranks > 1
    return settings | {"context": list(msgspec.structs.astuple(shape.context))} if divided else settings


def with_adapter(namespace: Namespace, name: Sequence[object]) -> Namespace:
    """Returns the namespace of requests with a LoRA adapter of this name; see LoraAdapters.name_of()."""
    return msgspec.structs.replace(namespace, lora=_canonical_json(list(name)))


def backends_of(config: Any, group: Any) -> tuple[str, ...]:
    """Returns the attention backends of a group's layers, once the layers exist.

    Two backends may give caches of one shape different meanings.
    """
    layers = getattr(config.compilation_config, "static_forward_context", {})
    backends = (layers[name].get_attn_backend() for name in group.layer_names if name in layers)
    return tuple(sorted({f"{backend.__module__}.{backend.__qualname__}" for backend in backends}))


def _architecture(model: Any) -> str:
    """Returns the name of the model's code. The path of the weights says nothing about them."""
    names = getattr(model.hf_config, "architectures", None) or [getattr(model.hf_config, "model_type", "")]
    return str(names[0] or "model")


def _revision(config: Any, weights: str) -> dict[str, object]:
    """Returns what identifies the weights and the code that computes with them."""
    model, load, draft = config.model_config, config.load_config, draft_model_of(config)
    drafts = [] if draft is None else [draft.method, _digest(draft.model_config), _quantisation_of(draft.model_config)]
    drafts += [draft.cache_dtype] if draft is not None and draft.cache_dtype else []
    classes = getattr(model, "model_class_overrides", None)
    revision: dict[str, object] = {
        "engine": ["vllm", getattr(sys.modules.get("vllm"), "__version__", "")],
        "code": str(getattr(model, "code_revision", None) or ""),
        "config": _digest(model),
        "load": [str(getattr(load, name, "") or "") for name in ("load_format", "model_loader_extra_config")],
        "weights": weights,
    }
    return revision | ({"drafts": drafts} if drafts else {}) | ({"classes": classes} if classes else {})


def _digest(model: Any) -> str:
    settings = [_settings(model.hf_config), _temperature_tuning(model)]
    return sha256(_canonical_json(settings).encode()).hexdigest()


def _temperature_tuning(model: Any) -> object:
    """Returns whether Llama 4 scales queries by their position.

    vLLM takes it from the generation settings. It writes it into the configuration of the processes that load the
    model, and the scheduler is another one, so what the configuration says of it is not used.
    """
    read = getattr(model, "try_get_generation_config", dict)
    return {**read(), **(getattr(model, "override_generation_config", None) or {})}.get(_TUNING, False)


def formats_of(spec: Any) -> tuple[str, ...]:
    """Returns the formats of recurrent states and quantised caches, whose bytes do not show their dtype.

    They are those of one layer if all layers have the same.
    """
    layers = [_format_of(one) for one in layer_specs(spec)]
    alike = all(one == layers[0] for one in layers)
    return (*chain.from_iterable(layers[:1] if alike else layers), os.environ.get(_CONV_LAYOUT, ""))


def _format_of(spec: Any) -> list[str]:
    fields = ("shapes", "dtypes", "mamba_type", "kv_quant_mode", "sliding_window")
    return [f"{name} {getattr(spec, name, None)}" for name in fields]


def _rope(model: Any) -> dict[str, object]:
    """Returns the settings of RoPE with the model's length, because some kinds are scaled by it."""
    text = getattr(model, "hf_text_config", model.hf_config)
    names = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor")
    return {name: getattr(text, name, None) for name in names} | {"length": model.max_model_len}


def _quantisation(config: Any) -> list[object]:
    """Returns the quantisation of the weights and of the cache, with vLLM's variables that say more, if any is set."""
    values = {name: getattr(sys.modules.get("vllm.envs"), name, None) for name in _QUANTISING}
    given = {name: value for name, value in values.items() if value}
    cache = str(config.cache_config.cache_dtype)
    return [*_quantisation_of(config.model_config), cache, *([given] if given else [])]


def _quantisation_of(model: Any) -> list[object]:
    return [model.quantization, *(getattr(source, "quantization_config", None) for source in (model.hf_config, model))]


def _multimodal(model: Any) -> dict[str, object]:
    """Returns the engine's settings for the multimodal processor; vLLM's hashes contain only those of the request."""
    settings = getattr(model, "multimodal_config", None)
    if settings is None:
        return {}
    given = {name: getattr(settings, name, None) for name in _MULTIMODAL}
    if given["video_pruning_rate"]:
        given["video_pruning_method"] = getattr(settings, "video_pruning_method", None)
    return given


def scales_of(model: Any) -> str:
    """Returns the digest of the file with the scales of an encoder in FP8; "" without one. See digest_of_setting()."""
    return digest_of_setting(getattr(getattr(model, "multimodal_config", None), "mm_encoder_fp8_scale_path", None))


def _processor(config: Any) -> list[str]:
    """Returns the CPU's instruction sets, which determine how a cache on a CPU is packed. Empty for other devices.

    A disk tier may be moved to a machine with another CPU.
    """
    if getattr(getattr(config, "device_config", None), "device_type", "") != "cpu":
        return []
    flags = {flag for line in _CPUINFO.read_text().splitlines() if line.startswith("flags") for flag in line.split()}
    return [platform.machine(), *sorted(flag for flag in flags if flag.startswith(("amx", "avx512")))]


def _hashes(cache: Any) -> list[str]:
    return [str(getattr(cache, "prefix_caching_hash_algo", "")), os.environ.get("PYTHONHASHSEED", "")]


def _settings(config: Any) -> Any:
    """Returns the settings without those that say where they were read from, or that are not read from here."""
    return _without_others(config.to_dict() if hasattr(config, "to_dict") else dict(vars(config)))


def _without_others(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {str(name): _without_others(inner) for name, inner in value.items() if name not in _NOT_READ}


def _canonical_json(settings: object) -> str:
    """Returns settings as JSON with sorted keys."""
    return json.dumps(settings, sort_keys=True, default=_plain)


def _plain(other: Any) -> Any:
    return other.to_dict() if hasattr(other, "to_dict") else str(other)


class PrivateNamespaces:
    """Flushes the private namespaces that were in use before a reset: their pages are useless to every engine.

    A namespace is private if its salt is a random text of this engine. The index records an adapter's pages in the
    namespace without the adapter, so they are flushed, too. Pages that a worker still writes at the time of a reset are
    flushed at the next reset. The daemon drops what is left, or what was stored while it was unreachable, when its
    table of namespaces is full. One thread sends the requests; no method blocks.

    Args:
        client: This process's client.
        namespaces: The private ones among the engine's first namespaces.
    """

    def __init__(self, client: Client, namespaces: Iterable[Namespace]) -> None:
        self._client = client
        self._current = set(namespaces)
        self._before: set[Namespace] = set()
        self._thread = ThreadPoolExecutor(1, "pagetier-flush")

    def renew(self, namespaces: Iterable[Namespace]) -> None:
        """Flushes the previous private namespaces and records the new ones."""
        useless, self._current = self._current, set(namespaces)
        for namespace in useless | self._before:
            self._thread.submit(self._client.flush, namespace, _FLUSH_TIMEOUT_S)
        self._before = useless

    def close(self) -> None:
        """Sends no further requests."""
        self._thread.shutdown(wait=False, cancel_futures=True)
