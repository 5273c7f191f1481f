"""Determines the draft model of an engine: its layers have state of their own in the pages of its groups."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.weights import WeightsSource, source_of

# Methods whose guesses need no state in vLLM's cache.
_WITHOUT_STATE: Final = frozenset(("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"))
_WITH_STATE: Final = frozenset(("draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark"))


class DraftModel(msgspec.Struct, frozen=True):
    """The draft model, with the parts of vLLM's VllmConfig that say where its weights are from.

    Attributes:
        method: How it guesses, in vLLM's words.
        model_config: Its ModelConfig.
        load_config: Its LoadConfig.
        cache_dtype: The dtype of its cache, if it has one of its own; else "".
    """

    method: str
    model_config: Any
    load_config: Any
    cache_dtype: str = ""


def draft_model_of(config: Any) -> DraftModel | None:
    """Returns the draft model, or None if the engine has none whose state is cached.

    Raises:
        UnsupportedError: The method or the placement of the draft model is not supported.
    """
    speculative = getattr(config, "speculative_config", None)
    method = str(getattr(speculative, "method", None) or "") if speculative is not None else ""
    if speculative is None or method in _WITHOUT_STATE:
        return None
    if method not in _WITH_STATE and not method.endswith("_mtp"):
        raise UnsupportedError(
            f'drafts by "{method}" are not supported: name another method in --speculative-config, or leave it out'
        )
    _check_ranks(config.parallel_config, speculative)
    load = getattr(speculative, "draft_load_config", None) or config.load_config
    cache_dtype = str(getattr(speculative, "kv_cache_dtype", None) or "")
    return DraftModel(method, speculative.draft_model_config, load, cache_dtype)


def weights_sources(config: Any, declared: str, since: int) -> tuple[WeightsSource, ...]:
    """Returns where the weights of the model and of its draft model are from. The arguments are those of source_of().

    Raises UnsupportedError for a draft model that is not supported.
    """
    draft = draft_model_of(config)
    return tuple(source_of(one, declared, since) for one in (config, draft) if one is not None)


def _check_ranks(target: Any, speculative: Any) -> None:
    ranks = getattr(speculative.draft_parallel_config, "tensor_parallel_size", target.tensor_parallel_size)
    if ranks != target.tensor_parallel_size:
        raise UnsupportedError(
            f"a draft model on {ranks} ranks beside a model on {target.tensor_parallel_size} is not supported: leave"
            ' "draft_tensor_parallel_size" out of --speculative-config'
        )
