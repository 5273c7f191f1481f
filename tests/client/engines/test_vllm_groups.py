"""Tests which groups of vLLM have pages, which are left out, and which are refused and with what words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.vllm.group_kinds import cached_groups, has_latents, kind_of
from pagetier.client.groups import FullAttention, SlidingWindow
from vllm_caches import FullAttentionSpec, SlidingWindowSpec, UniformTypeKVCacheSpecs


def spec(name: str, **fields: Any) -> Any:
    """Returns a specification of a class with this name."""
    made = type(name, (SimpleNamespace,), {})
    return made(**{"block_size": 16} | fields)


def group(of: Any, *layers: str, **fields: Any) -> Any:
    return SimpleNamespace(kv_cache_spec=of, layer_names=list(layers or ("layers.0",)), **fields)


def config(*groups: Any) -> Any:
    return SimpleNamespace(kv_cache_groups=list(groups))


ATTENTION = group(FullAttentionSpec(16))
LEFT_OUT = {
    "a buffer of a request": group(spec("CircularBufferSpec", prefix_cacheable=False)),
    "a window that is replayed": group(spec("SlidingWindowMLASpec", prefix_replay_tokens=128, sliding_window=128)),
    "a copy on the accelerator": group(SlidingWindowSpec(16), enable_kv_transfer=False),
    "an encoder alone": group(spec("EncoderOnlyAttentionSpec")),
    "buffers of several sizes": group(
        UniformTypeKVCacheSpecs(16, {"a": spec("CircularBufferSpec"), "b": spec("CircularBufferSpec")})
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_groups_whose_state_is_that_of_a_request_are_left_out(name: str) -> None:
    left_out, window = LEFT_OUT[name], group(SlidingWindowSpec(16))
    assert cached_groups(config(left_out, ATTENTION, left_out, window)) == {1: ATTENTION, 3: window}


def test_a_model_without_a_group_that_has_pages_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no group of layers takes part in prefix caching: start this model"):
        cached_groups(config(*LEFT_OUT.values()))


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (group(spec("CrossAttentionSpec")), r"do not identify the input of an encoder: start .* without pagetier"),
        (group(spec("RSWASpec")), r"frees blocks in the middle of an answer \(R-SWA\).*: start .* without pagetier"),
        (group(spec("HiddenStateCacheSpec")), "hidden states .*: leave extract_hidden_states out of"),
        (group(spec("HiSparseHotSpec", prefix_cacheable=False)), "HiSparse .*: leave hisparse_config out of"),
        (group(FullAttentionSpec(16), host_resident=True), "HiSparse .*: leave hisparse_config out of"),
        (group(spec("NewSpec")), "layers with a NewSpec are not supported: start .* without pagetier"),
        (group(spec("MLAAttentionSpec", compress_ratio=4)), "need vLLM 0.32 or later"),
    ],
)
def test_one_line_names_a_refused_group_the_reason_and_what_to_do(refused: Any, reason: str) -> None:
    name = type(refused.kv_cache_spec).__name__
    refused.layer_names = ["layers.7", "layers.9", "layers.11"]
    with pytest.raises(UnsupportedError, match=rf"^group 1 \({name} of layers.7 and 2 more\): [^\n]*{reason}"):
        cached_groups(config(ATTENTION, refused))


def test_kinds_of_state_with_other_names() -> None:
    assert kind_of(spec("SinkFullAttentionSpec", sink_len=16)) == FullAttention(16)
    assert kind_of(spec("MLAAttentionSpec", tokens_per_state=4)) == FullAttention(16)
    window = spec("SlidingWindowMLASpec", sliding_window=8, extra_retained_tokens=1)
    assert kind_of(window) == SlidingWindow(16, 9) and has_latents(window)
