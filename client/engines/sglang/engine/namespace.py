"""Determines the namespaces of SGLang's pages: everything that its hashes do not contain."""

from __future__ import annotations

import json
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import msgspec

from pagetier.client.engines.sglang.pools.device_pools import STATE, DevicePool
from pagetier.client.engines.weights import ModelIdentity, WeightsSource, source_of
from pagetier.client.keys import Namespace
from pagetier.kernels.layout.transfer import PagedCache

_KERNELS = ("attention_backend", "linear_attn_backend", "mamba_backend")
_ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor")
_SETTINGS = (
    *("load_format", "model_loader_extra_config", "speculative_draft_load_format", "kt_weight_path", "kt_method"),
    *("modelopt_quant", "modelopt_checkpoint_restore_path", "dllm_algorithm"),
    *("enable_precise_embedding_interpolation", "enable_decoder_swa_bounded_replay"),
)
_USUAL = {"load_format": "auto", "model_loader_extra_config": "{}", "kt_method": "AMXINT4"}
_ORIGIN = frozenset(("_name_or_path", "_commit_hash", "name_or_path", "transformers_version"))


class EngineFacts(msgspec.Struct, frozen=True, eq=False):
    """What an engine computes with.

    Attributes:
        version: The version of SGLang.
        model: SGLang's ModelConfig.
        server: SGLang's settings as they are used.
        draft: SGLang's ModelConfig of a draft model whose state is cached; None without one.
        stage: The pipeline stage, the number of stages, and the first layer of the stage and of the next one; empty
            without a pipeline.
        tokens: Which of how many shares of the tokens of a page this rank has.
        scales: The digest of the file with the scales of an FP8 cache; "" without one.
    """

    version: str
    model: Any
    server: Any
    draft: Any = None
    stage: tuple[int, ...] = ()
    tokens: tuple[int, int] = (0, 1)
    scales: str = ""

    @property
    def adapters(self) -> bool:
        """Whether requests may have LoRA adapters, of which SGLang hashes names and paths, but not the weights."""
        enabled = self.server.enable_lora
        return bool(self.server.lora_paths if enabled is None else enabled)


def weights_sources(facts: EngineFacts, declared: str, since: int) -> tuple[WeightsSource, ...]:
    """Returns where the weights of an engine are from: the model, then a draft model that is not a part of it.

    Args:
        facts: What the engine computes with.
        declared: The setting `weights`.
        since: The time at which the engine was started, in nanoseconds.
    """
    models = [facts.model, *([facts.draft] if facts.draft is not None else [])]
    places = {(model.model_path, model.revision): model for model in reversed(models)}
    return tuple(_source(model, facts.server, declared, since) for model in reversed(places.values()))


def _source(model: Any, server: Any, declared: str, since: int) -> WeightsSource:
    load_format = getattr(server.load_format, "value", server.load_format)
    config = SimpleNamespace(
        model_config=SimpleNamespace(model=model.model_path, revision=model.revision, hf_config=model.hf_config),
        load_config=SimpleNamespace(load_format=load_format, download_dir=server.download_dir),
    )
    return source_of(config, declared, since)


def namespace_of(
    facts: EngineFacts, pool: DevicePool, paged: PagedCache, identity: ModelIdentity, salt: str
) -> Namespace:
    """Returns the namespace of the pages of one group.

    Args:
        facts: What the engine computes with.
        pool: The pool of the group.
        paged: The cache of the group.
        identity: The identity of the model.
        salt: A text that separates engines.
    """
    model, server = facts.model, facts.server
    return Namespace(
        model=str((model.hf_config.architectures or ["model"])[0]),
        revision=_canonical_json(
            {"engine": ["sglang", facts.version], "config": _digest(model.hf_config), "weights": identity.weights}
            | _draft(facts)
            | _given(facts)
        ),
        dtype=str(model.dtype if pool.name == STATE else pool.pool.dtype).removeprefix("torch."),
        page_tokens=pool.group.kind.page_tokens,
        group=_canonical_json(
            {
                "pool": pool.name,
                "kind": type(pool.group.kind).__name__,
                "layers": len(pool.layers),  # which ones follows from the configuration of the model
                "kernels": [str(getattr(server, name, None)) for name in _KERNELS],
            }
            | ({"variants": pool.variants} if pool.variants else {})
            | ({"stage": facts.stage} if facts.stage else {})
            | ({"tokens": facts.tokens} if facts.tokens[1] > 1 else {})
        ),
        layout=paged.page.layout,
        rope=_canonical_json(
            {name: getattr(model.hf_text_config, name, None) for name in _ROPE} | {"length": model.context_len}
        ),
        quantisation=_canonical_json([model.quantization, str(server.kv_cache_dtype), *_computed_in(model, pool)]),
        salt=salt,
        title=identity.title,
    )


def _draft(facts: EngineFacts) -> dict[str, Any]:
    """Returns what determines the state of a draft model."""
    draft = facts.draft
    if draft is None:
        return {}
    return {"draft": [str(facts.server.speculative_algorithm), _digest(draft.hf_config), draft.quantization]}


def _given(facts: EngineFacts) -> dict[str, Any]:
    """Returns the settings that change the state; nothing with the usual ones, so that pages keep their names.

    Another way to load may take other weights from the same files. With bounded replay, the last tokens of a window
    alone may have been computed, and the engine computes those behind a hit again, which others do not.
    """
    values = {name: getattr(facts.server, name, None) for name in _SETTINGS}
    texts = {name: str(getattr(value, "value", value)) for name, value in values.items() if value}
    given = {name: text for name, text in texts.items() if text != _USUAL.get(name)}
    given |= {"scales": facts.scales} if facts.scales else {}
    return {"settings": given} if given else {}


def _computed_in(model: Any, pool: DevicePool) -> list[str]:
    """Returns the type in which K and V were computed, unless they are stored in it."""
    return [] if pool.name == STATE or model.dtype == pool.pool.dtype else [str(model.dtype)]


def _digest(config: Any) -> str:
    settings = {name: value for name, value in config.to_dict().items() if name not in _ORIGIN}
    return sha256(_canonical_json(settings).encode()).hexdigest()


def _canonical_json(settings: object) -> str:
    """Returns settings as JSON with sorted keys."""
    return json.dumps(settings, sort_keys=True, default=str)
