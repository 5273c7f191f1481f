"""Chooses SGLang's page size where SGLang would take one token, a page of which fills a small part of its frame.

SGLang's tree looks up, stores and evicts its own pages, so that a page of pagetier cannot consist of several of them
(docs/design/frames.md). A choice depends on the model and on settings only, as in block_groups.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from pagetier.client.engines.block_groups import BlockGroup, filling_page_tokens
from pagetier.client.groups import FullAttention, SlidingWindow

log = logging.getLogger("pagetier.sglang")

_PAGED: Final = frozenset(("fa3", "flashinfer", "torch_native", "triton"))
"""The attention backends with pages of any size. SGLang itself chooses the page size of those with certain sizes."""

_PLAIN: Final = {
    "speculative_algorithm": None,  # which trees of tokens have pages depends on the backend
    "kv_events_config": None,  # a router may be set to SGLang's default
    "disaggregation_mode": "null",  # prefill and decoding need the same page size, also without pagetier
    "dllm_algorithm": None,
    "pp_size": 1,
    "attn_cp_size": 1,
    "dcp_size": 1,
}
"""The settings with which the page size may change, and their values."""

_ONE_TOKEN: Final = frozenset(("UnlimitedOCRForCausalLM",))  # its attention (prefill-aware windows) has no larger pages
_LEAST_PAGES: Final = 16
"""The pages for which a pool must have room: without one, SGLang does not start. A request takes up to two pages more
than its tokens, the rest of its last page and one that SGLang reserves: an eighth of the smallest pool."""
_WINDOW_SHARE: Final = 0.8  # of the tokens of full attention, in SGLang's pools of windows if a user sets no share
_STATE_CHUNK: Final = 64  # the tokens after which SGLang can keep a recurrent state, if a model does not say it


def chosen_page_tokens(view: Any, backends: Sequence[str | None], model: Any, recurrent: Any) -> int:
    """Returns the tokens of a page with which pages fill their frames; 0 if SGLang's own choice stays.

    One line in the log says if it stays because the pools that a user has set are too small.

    Args:
        view: SGLang's settings as far as they are resolved.
        backends: The attention backends for prefill and decoding.
        model: SGLang's ModelConfig.
        recurrent: SGLang's configuration of a model with recurrent layers, else None.
    """
    if view.page_size is not None or not _PAGED.issuperset(backends):
        return 0
    if any(getattr(view, name) != value for name, value in _PLAIN.items()):
        return 0
    if model.is_encoder_decoder or not _ONE_TOKEN.isdisjoint(model.hf_config.architectures):
        return 0
    groups = token_groups(view, model, recurrent)
    tokens = filling_page_tokens(groups) if groups else 0
    if not tokens or (recurrent is not None and not _keeps_states(view, model, tokens)):
        return 0
    return tokens if _has_room(view, groups, tokens) else 0


def _has_room(view: Any, groups: Sequence[BlockGroup], tokens: int) -> bool:
    """Returns whether pools of `--max-total-tokens` have room for pages. Without it, they are as large as the GPU."""
    most = view.max_total_tokens
    if most is None or min(_room(view, group) for group in groups) >= _LEAST_PAGES * tokens:
        return True
    line = "pagetier leaves --page-size to SGLang: --max-total-tokens %d is too small for pages of %d tokens"
    log.info(line, most, tokens)
    return False


def _room(view: Any, group: BlockGroup) -> int:
    """Returns for how many tokens a pool has room: that of windows has a share of all, and keeps one window."""
    most, kind = int(view.max_total_tokens), group.kind
    if not isinstance(kind, SlidingWindow):
        return most
    return int(most * (view.swa_full_tokens_ratio or _WINDOW_SHARE)) - kind.window


def token_groups(view: Any, model: Any, recurrent: Any) -> list[BlockGroup]:
    """Returns the groups of attention with pages of one token, of all ranks; none if the pools are not known.

    Args:
        view: SGLang's settings as far as they are resolved.
        model: SGLang's ModelConfig.
        recurrent: SGLang's configuration of a model with recurrent layers, else None.
    """
    latent, element_bytes = model.attention_arch.name == "MLA", _element_bytes(view, model)
    if model.is_hybrid_swa and not view.disable_hybrid_swa_memory:
        known = not latent and recurrent is None and model.full_attention_layer_ids and model.swa_attention_layer_ids
        groups = _window_groups(model, element_bytes) if known else []
    else:
        layers = model.num_attention_layers if recurrent is None else len(recurrent.full_attention_layer_ids)
        row = model.kv_lora_rank + model.qk_rope_head_dim if latent else _row(model)
        groups = [BlockGroup(FullAttention(1), layers * row * element_bytes)]
    return groups if all(group.nbytes for group in groups) else []


def _window_groups(model: Any, element_bytes: int) -> list[BlockGroup]:
    row = model.get_swa_num_kv_heads(1) * (model.swa_head_dim + model.swa_v_head_dim)
    full, windowed = len(model.full_attention_layer_ids), len(model.swa_attention_layer_ids)
    window = SlidingWindow(1, model.sliding_window_size - 1)  # SGLang keeps one token less than the window
    return [
        BlockGroup(FullAttention(1), full * _row(model) * element_bytes),
        BlockGroup(window, windowed * row * element_bytes),
    ]


def _row(model: Any) -> int:
    """Returns the elements of K and V of a token and layer."""
    return int(model.get_num_kv_heads(1) * (model.head_dim + model.v_head_dim))


def _element_bytes(view: Any, model: Any) -> int:
    match view.kv_cache_dtype:
        case "auto":
            return int(model.dtype.itemsize)
        case "bf16" | "bfloat16":
            return 2
        case "fp8_e4m3" | "fp8_e5m2":
            return 1
        case _:  # formats with scales beside the elements
            return 0


def _keeps_states(view: Any, model: Any, tokens: int) -> bool:
    """Returns whether SGLang keeps recurrent states that are cached at the ends of pages of so many tokens."""
    chunk = getattr(model.hf_config, "mamba_chunk_size", _STATE_CHUNK)
    return bool(
        not view.enable_int8_mamba_checkpoint
        and view.mamba_radix_cache_strategy.startswith("extra_buffer")
        and view.mamba_track_interval % tokens == 0
        and max(chunk, tokens) % min(chunk, tokens) == 0
    )
