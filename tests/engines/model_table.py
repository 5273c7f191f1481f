"""The table of models in docs/models.md, of what the tests run: `python tests/engines/model_table.py` prints it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Final

from vllm.v1.kv_cache_interface import KVCacheConfig

from market_models import MODELS
from model_families import FAMILIES, scheduler_groups
from one_host import PAGE_TOKENS
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.vllm.group_kinds import kind_of, layer_specs
from tiny_model import RECIPES

_SAME_ANSWERS: Final = {
    "llama": ("Llama", "full attention"),
    "gemma3": ("Gemma 3", "full attention, windows"),
    "gpt_oss": ("gpt-oss", "full attention, windows"),
    "qwen3_next": ("Qwen3-Next", "full attention, recurrent states"),
    "llama4": ("Llama 4", "full attention, attention within chunks"),
    "glm4_moe": ("GLM-4-MoE", "full attention"),
}
"""The models that test_same_answers.py runs. test_market_models.py runs the others."""
REFUSED: Final = {
    "CrossAttentionSpec": ("Whisper, BART", "cross attention"),
    "RSWASpec": ("OCR models", "R-SWA"),
    "HiddenStateCacheSpec": ("any, with `extract_hidden_states`", "hidden states"),
    "HiSparseHotSpec": ("any, with `hisparse_config`", "HiSparse"),
}
_WORDS: Final = {
    "FullAttentionSpec": "full attention",
    "MLAAttentionSpec": "latents",
    "SlidingWindowSpec": "windows",
    "SlidingWindowMLASpec": "windows of latents",
    "MambaSpec": "recurrent states",
    "CircularBufferSpec": "buffers of a request",
}
_EQUAL: Final = "answers are bit-equal in a real engine"
_ALIKE: Final = "loaded answers are bit-equal to each other in a real engine without a prefix cache of vLLM"
_COPIED: Final = "planned by vLLM; every byte of the copies, and its scheduler"


def table() -> list[str]:
    """Returns the lines of the table."""
    assert _SAME_ANSWERS.keys() == RECIPES.keys() & PAGE_TOKENS.keys()
    equal = [(*row, _EQUAL) for row in _SAME_ANSWERS.values()]
    equal += [(one.title, one.state, _EQUAL if one.has_own_cache else _ALIKE) for one in MODELS.values()]
    copied = [(family, _states_of(family), _COPIED) for family in FAMILIES]
    refused = [(*REFUSED[name], f"refused: {_reason(name)}") for name in REFUSED]
    kinds = _by_kind([*equal, *copied, *refused])
    rows = (" | ".join(row) for row in (("models", "state", "tested"), ("--",) * 3, *kinds))
    return [f"| {row} |" for row in rows]


def _by_kind(rows: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yields one row for all models with the same state that were tested alike."""
    models: dict[tuple[str, str], list[str]] = {}
    for model, state, tested in rows:
        models.setdefault((state, tested), []).append(model)
    return ((", ".join(names), *kind) for kind, names in models.items())


def _states_of(family: str) -> str:
    from model_families import planned_groups

    plan = KVCacheConfig(num_blocks=1, kv_cache_tensors=[], kv_cache_groups=planned_groups(FAMILIES[family](1)))
    cached = set(scheduler_groups(family, 1).prefix_cacheable_group_ids)
    groups = dict(enumerate(group.kv_cache_spec for group in plan.kv_cache_groups))
    known = ", ".join(dict.fromkeys(_texts(spec for number, spec in groups.items() if number in cached)))
    left_out = ", ".join(dict.fromkeys(_texts(spec for number, spec in groups.items() if number not in cached)))
    return f"{known}; left out: {left_out}" if left_out else known


def _texts(groups: Any) -> Iterator[str]:
    layers = [one for group in groups for one in layer_specs(group)]
    for name in dict.fromkeys(type(one).__name__ for one in layers):
        tokens = {getattr(one, "tokens_per_state", 1) for one in layers if type(one).__name__ == name}
        several = " and ".join(str(count) for count in sorted(tokens) if count > 1)
        yield _WORDS[name] + (f" (one for {several} tokens)" if several else "")


def _reason(name: str) -> str:
    spec = type(name, (SimpleNamespace,), {})(block_size=16)
    try:
        kind_of(spec)
    except UnsupportedError as error:
        return str(error)
    raise AssertionError(f"{name} is accepted")


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in table()))
