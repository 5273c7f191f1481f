"""Tests which configurations of vLLM are rejected, the kind of state of each group, and what separates namespaces."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fake_vllm_config import Config, group, vllm_config
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.vllm import setup
from pagetier.client.engines.vllm.counters import HELP, ConnectorCounters
from pagetier.client.engines.vllm.draft_model import draft_model_of
from pagetier.client.engines.vllm.group_kinds import has_every_state, kind_of
from pagetier.client.engines.vllm.kv_tensors import paged_cache
from pagetier.client.engines.vllm.lora import private_name
from pagetier.client.engines.vllm.namespace import (
    PageShape,
    backends_of,
    formats_of,
    namespace_of,
    scales_of,
    with_adapter,
)
from pagetier.client.engines.vllm.plugin import require_cacheable
from pagetier.client.engines.vllm.rank_share import ContextShare, check_prefill, kind_in, ranks_of, share_of
from pagetier.client.engines.vllm.request_state import LoadedTokens
from pagetier.client.engines.vllm.settings import ConnectorSettings, Directions, directions_of, read_settings
from pagetier.client.engines.vllm.setup import (
    is_switched_off,
    recompute_failed_loads,
    require_failure_reports,
    seed_remark,
    warn_of_switch,
)
from pagetier.client.engines.vllm.worker import Zeroing
from pagetier.client.engines.weights import ModelIdentity
from pagetier.client.groups import ChunkedAttention, FullAttention, Recurrent, SlidingWindow
from pagetier.kernels.layout.cache_layout import LayoutError
from pagetier.kernels.layout.page_layout import PageLayout, Rows, Shard
from vllm_caches import (
    HEADS,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    heads_first,
)

SHAPE = PageShape(PageLayout(16, ((Rows("k", "uint8", 1, 256),),)))


def test_settings_are_read() -> None:
    assert read_settings({}) == ConnectorSettings()
    assert read_settings({"disk_timeout": 0, "salt": "s"}) == ConnectorSettings(disk_timeout=0.0, salt="s")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"sokcet": "x"}, "sokcet"),
        ({"disk_timeout": -1}, "disk_timeout.*-1"),
        ({"disk_timeout": 4000}, "disk_timeout.*4000"),
        ({"disk_timeout": "soon"}, "disk_timeout"),
        ({"remote_timeout": -0.1}, "remote_timeout.*-0.1"),
        ({"remote_least": 0}, "remote_least.*0"),
        ({"socket": 7}, "socket"),
        ({"prefix_caching": "never"}, "prefix_caching"),
        ({"store": "later"}, "store"),
        ({"mode": "load"}, "mode"),
        (
            {"sokcet": "x"},
            ".*known keys are socket, disk_timeout, .*, prefix_caching, events_lease, mode",
        ),
    ],
)
def test_an_invalid_setting_is_named_in_the_error(given: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"kv_connector_extra_config.*{name}"):
        read_settings(given)


@pytest.mark.parametrize(
    ("switch", "prefix_caching", "is_off"),
    [(True, "follow", False), (False, "follow", True), (True, "always", False), (False, "always", False)],
)
def test_vllms_own_switch_is_followed_unless_the_setting_says_always(
    switch: bool, prefix_caching: str, is_off: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = SimpleNamespace(cache_config=SimpleNamespace(enable_prefix_caching=switch))
    switched_off = is_switched_off(config, read_settings({"prefix_caching": prefix_caching}))
    assert switched_off is is_off
    warn_of_switch(switched_off=switched_off)
    assert len(caplog.messages) == is_off and all('"prefix_caching": "always"' in line for line in caplog.messages)


@pytest.mark.parametrize("given", ["fail", "recompute"])
def test_the_failure_policy_becomes_recompute(given: str) -> None:
    transfer = SimpleNamespace(kv_load_failure_policy=given)
    recompute_failed_loads(transfer)
    assert transfer.kv_load_failure_policy == "recompute"


@pytest.mark.parametrize(
    ("model", "other", "reason"),
    [
        ({}, {}, ""),
        ({"runner_type": "pooling"}, {}, "pooling model"),
        ({"is_encoder_decoder": True}, {}, "an encoder and a decoder"),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, {}, ""),
        ({}, {"cache_config": SimpleNamespace(enable_prefix_caching=False)}, "prefix caching off"),
        ({}, {"attention_config": SimpleNamespace(hisparse_config=object())}, "hisparse_config"),
        ({}, {"speculative_config": SimpleNamespace(method="custom_class")}, "--speculative-config"),
    ],
)
def test_what_excludes_the_connector_in_vllms_configuration_is_named(
    model: dict[str, Any], other: dict[str, Any], reason: str
) -> None:
    plain = {"runner_type": "generate", "is_encoder_decoder": False, "architectures": ["LlamaForCausalLM"]}
    settings: dict[str, Any] = {
        "model_config": SimpleNamespace(**(plain | model)),
        "cache_config": SimpleNamespace(enable_prefix_caching=True),
        "kv_transfer_config": SimpleNamespace(kv_connector_extra_config={}),
        "speculative_config": None,
    }
    config = SimpleNamespace(**(settings | other))
    with pytest.raises(UnsupportedError, match=reason) if reason else nullcontext():
        require_cacheable(config)


def test_old_versions_do_not_support_several_groups() -> None:
    one, two = SimpleNamespace(kv_cache_groups=[0]), SimpleNamespace(kv_cache_groups=[0, 1])
    require_failure_reports(one, by_request=False)
    require_failure_reports(two, by_request=True)
    with pytest.raises(UnsupportedError):
        require_failure_reports(two, by_request=False)


@pytest.mark.parametrize(("seeded", "seed", "warns"), [(True, "", False), (False, "0", False), (False, "", True)])
def test_a_random_hash_seed_is_logged(seeded: bool, seed: str, warns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", seed)
    assert ("PYTHONHASHSEED" in seed_remark(seeded=seeded)) is warns


def test_each_spec_has_its_kind_of_state() -> None:
    assert kind_of(FullAttentionSpec(16)) == kind_of(MLAAttentionSpec(16)) == FullAttention(16)
    assert kind_of(SlidingWindowSpec(16, 48)) == SlidingWindow(16, 48)
    assert kind_of(SlidingWindowSpec(16, 48, extra_retained_tokens=2)) == SlidingWindow(16, 50), "kept for drafts"
    assert kind_of(ChunkedLocalAttentionSpec(16)) == ChunkedAttention(16, 64)
    assert kind_of(MambaSpec(32)) == kind_of(MambaSpec(32, "all")) == Recurrent(32)
    assert has_every_state(MambaSpec(32, "all")) and not has_every_state(MambaSpec(32))
    same = {"a": FullAttentionSpec(16), "b": MLAAttentionSpec(16)}
    assert kind_of(UniformTypeKVCacheSpecs(16, same)) == FullAttention(16)


@pytest.mark.parametrize(
    "spec",
    [
        FullAttentionSpec(16, non_causal=True),
        MambaSpec(16, "none"),
        MambaSpec(16, "all", num_speculative_blocks=2),
        UniformTypeKVCacheSpecs(16, {"a": FullAttentionSpec(16), "b": SlidingWindowSpec(16, 48)}),
    ],
)
def test_unsupported_specs_are_rejected(spec: Any) -> None:
    with pytest.raises(UnsupportedError):
        kind_of(spec)


def test_tensors_of_unknown_shape_are_rejected() -> None:
    cache = heads_first()
    with pytest.raises(LayoutError, match="shape"):
        paged_cache([layer[0, 0] for layer in cache.layers], cache.spec, Shard(0, 1), HEADS, 16)
    with pytest.raises(UnsupportedError, match="specifies blocks of 24 tokens, its tensors have blocks of 16"):
        paged_cache(cache.layers, FullAttentionSpec(24), Shard(0, 1), HEADS, 24)
    with pytest.raises(UnsupportedError, match="heads"):
        paged_cache(cache.layers, FullAttentionSpec(16, num_kv_heads=1), Shard(0, 1), 1, 16)


# --- Namespaces


MODEL = ModelIdentity("the digest of the weights", "org/model")


def digest(
    config: Any, of: Any = None, shape: PageShape = SHAPE, salt: str = "", identity: ModelIdentity = MODEL
) -> bytes:
    return namespace_of(config, of or group(), shape, identity, salt).digest


DIFFERENCES: dict[str, Callable[[Any], object]] = {
    "architecture": lambda config: setattr(config.model_config.hf_config, "architectures", ["Other"]),
    "code": lambda config: setattr(config.model_config, "code_revision", "v2"),
    "class": lambda config: setattr(config.model_config, "model_class_overrides", {"Model": "module:Other"}),
    "any setting of the model": lambda config: setattr(config.model_config.hf_config, "layers", 3),
    "rope": lambda config: setattr(config.model_config.hf_config, "rope_theta", 500.0),
    "rope of the text model": lambda config: setattr(
        config.model_config, "hf_text_config", Config(rope_parameters={"factor": 8.0})
    ),
    "length": lambda config: setattr(config.model_config, "max_model_len", 8192),
    "dtype": lambda config: setattr(config.model_config, "dtype", "torch.float32"),
    "quantisation": lambda config: setattr(config.model_config, "quantization", "fp8"),
    "dtype of the cache": lambda config: setattr(config.cache_config, "cache_dtype", "fp8"),
    "hashes": lambda config: setattr(config.cache_config, "prefix_caching_hash_algo", "xxhash"),
    "way to load": lambda config: setattr(config.load_config, "load_format", "dummy"),
    "settings of the loader": lambda config: setattr(config.load_config, "model_loader_extra_config", {"pattern": "a"}),
}


def parallel(rank: int, **sizes: int) -> Any:
    known = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "rank": rank}
    return SimpleNamespace(**known | sizes)


def test_ranks_that_share_pages_are_in_one_division() -> None:
    staged = [share_of(parallel(rank, tensor_parallel_size=2, pipeline_parallel_size=2)) for rank in range(4)]
    assert [(one.division, one.heads) for one in staged] == [
        (0, Shard(0, 2)),
        (0, Shard(1, 2)),
        (1, Shard(0, 2)),
        (1, Shard(1, 2)),
    ]
    sizes = {"tensor_parallel_size": 4, "decode_context_parallel_size": 2, "cp_kv_cache_interleave_size": 8}
    divided = [share_of(parallel(rank, **sizes)) for rank in range(4)]
    assert [(one.division, one.heads, one.context) for one in divided] == [
        (0, Shard(0, 2), ContextShare(0, 2, 8)),
        (1, Shard(0, 2), ContextShare(1, 2, 8)),
        (0, Shard(1, 2), ContextShare(0, 2, 8)),
        (1, Shard(1, 2), ContextShare(1, 2, 8)),
    ]


@pytest.mark.parametrize(
    ("tensor", "context", "expected"),
    [
        (2, 1, [(0, 0, 4), (0, 2, 4), (0, 1, 4), (0, 3, 4)]),
        (2, 2, [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2)]),
        (2, 4, [(0, 0, 1), (2, 0, 1), (1, 0, 1), (3, 0, 1)]),
    ],
)
def test_ranks_that_divide_a_prompt_are_further_tensor_ranks(
    tensor: int, context: int, expected: list[tuple[int, int, int]]
) -> None:
    """As in vLLM's groups: ranks 0 and 1 are the tensor ranks of the first half, and 0, 2 divide the tokens."""
    sizes = {"tensor_parallel_size": tensor, "prefill_context_parallel_size": 2}
    shares = [share_of(parallel(rank, decode_context_parallel_size=context, **sizes)) for rank in range(2 * tensor)]
    assert [(one.context.rank, one.heads.rank, one.heads.ranks) for one in shares] == expected
    assert [one.division for one in shares] == [one.context.rank for one in shares]
    assert ranks_of(parallel(0, pipeline_parallel_size=3, **sizes)) == 12


def test_a_prompt_is_divided_for_latent_attention_only() -> None:
    old = parallel(0, prefill_context_parallel_size=2)
    new = SimpleNamespace(**vars(old), pcp_shard_decode_requests=True)
    latents = UniformTypeKVCacheSpecs(16, {"a": MLAAttentionSpec(), "b": MLAAttentionSpec()})
    check_prefill(parallel(0), [FullAttentionSpec()])
    check_prefill(new, [MLAAttentionSpec(), latents])
    with pytest.raises(UnsupportedError, match=r"latent attention \(MLA\) only: leave it out"):
        check_prefill(new, [MLAAttentionSpec(), FullAttentionSpec()])
    with pytest.raises(UnsupportedError, match=r"needs vLLM 0\.32"):
        check_prefill(old, [MLAAttentionSpec()])


def test_only_full_attention_is_divided_by_tokens() -> None:
    assert kind_in(FullAttentionSpec(16), ContextShare(1, 4)) == FullAttention(64)
    assert kind_in(SlidingWindowSpec(16, 48), ContextShare()) == SlidingWindow(16, 48)
    whole = FullAttentionSpec(16, dcp_sharded=False)  # a draft's layers, of which each rank has all tokens
    assert kind_in(whole, ContextShare()) == FullAttention(16)
    for spec in (SlidingWindowSpec(16, 48), whole):
        with pytest.raises(UnsupportedError, match="decode-context-parallel-size is supported for"):
            kind_in(spec, ContextShare(1, 4))


def with_draft(config: Any, method: str = "eagle", ranks: int = 1) -> Any:
    """Gives the engine a draft model on this many ranks, beside one rank of the model."""
    draft = deepcopy(config.model_config)
    parallel = SimpleNamespace(tensor_parallel_size=ranks)
    config.speculative_config = SimpleNamespace(
        method=method, draft_model_config=draft, draft_load_config=None, draft_parallel_config=parallel
    )
    config.parallel_config = SimpleNamespace(tensor_parallel_size=1)
    return config


def test_a_draft_model_changes_the_namespace() -> None:
    config = vllm_config()
    other, quantised = with_draft(vllm_config()), with_draft(vllm_config())
    other.speculative_config.draft_model_config.hf_config.layers = 5
    quantised.speculative_config.draft_model_config.quantization = "fp8"
    cached = [with_draft(vllm_config()) for _ in range(2)]
    for one, dtype in zip(cached, ("fp8_e4m3", "fp8_e5m2"), strict=True):
        one.speculative_config.kv_cache_dtype = dtype
    methods = [with_draft(vllm_config(), method) for method in ("draft_model", "eagle", "mtp", "dflash", "dspark")]
    assert len({digest(one) for one in (config, *methods, other, quantised, *cached)}) == 10
    for method in ("ngram", "suffix", "medusa"):
        assert digest(with_draft(vllm_config(), method)) == digest(config), "its guesses have no state"


def test_what_vllm_writes_into_the_configuration_of_a_draft_changes_nothing() -> None:
    """It does so in the process that loads the draft, which is that of the scheduler with one rank only."""
    unwritten, written = with_draft(vllm_config()), with_draft(vllm_config())
    written.speculative_config.draft_model_config.hf_config.target_layer_count = 2
    written.speculative_config.draft_model_config.hf_config.draft_vocab_size = 1024
    assert digest(unwritten) == digest(written)


def test_unsupported_draft_models_are_rejected() -> None:
    with pytest.raises(UnsupportedError, match='drafts by "custom_class" are not supported: name another method'):
        draft_model_of(with_draft(vllm_config(), "custom_class"))
    with pytest.raises(UnsupportedError, match=r"a draft model on 2 ranks beside a model on 1.*: leave"):
        draft_model_of(with_draft(vllm_config(), ranks=2))


@pytest.mark.parametrize("name", DIFFERENCES)
def test_each_setting_that_determines_a_page_changes_the_namespace(name: str) -> None:
    config = vllm_config()
    other = deepcopy(config)
    DIFFERENCES[name](other)
    assert digest(config) != digest(other)


@pytest.mark.parametrize(
    "variable",
    [
        {"VLLM_MARLIN_INPUT_DTYPE": "int8"},
        {"VLLM_HUMMING_ONLINE_QUANT_CONFIG": {"dtype": "int4"}},
        {"VLLM_HUMMING_INPUT_QUANT_CONFIG": {"dtype": "float8e4m3"}},
    ],
    ids=str,
)
def test_variables_that_quantise_change_the_namespace(
    variable: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    unset = dict.fromkeys(variable)
    monkeypatch.setitem(sys.modules, "vllm.envs", SimpleNamespace(**unset))
    before = digest(vllm_config())
    monkeypatch.setitem(sys.modules, "vllm.envs", SimpleNamespace(**variable))
    assert digest(vllm_config()) != before
    monkeypatch.delitem(sys.modules, "vllm.envs")
    assert digest(vllm_config()) == before


def with_images(**settings: Any) -> Any:
    """Returns the configuration of a multimodal model whose videos are pruned and whose encoder computes in FP8."""
    config = vllm_config()
    usual = {"video_pruning_rate": 0.5, "video_pruning_method": "evs", "mm_encoder_attn_dtype": "fp8"}
    config.model_config.multimodal_config = SimpleNamespace(**(usual | settings))
    return config


@pytest.mark.parametrize(
    "setting",
    [
        {"mm_processor_kwargs": {"num_crops": 4}},
        {"media_io_kwargs": {"video": {"num_frames": 40}}},
        {"video_pruning_rate": 0.25},
        {"video_pruning_method": "vidcom2"},
        {"mm_encoder_attn_dtype": None},
    ],
    ids=str,
)
def test_what_becomes_of_images_changes_the_namespace(setting: dict[str, Any]) -> None:
    assert digest(with_images(**setting)) != digest(with_images())


def test_the_scales_of_an_encoder_are_those_of_the_file_when_the_workers_started(tmp_path: Path) -> None:
    """A file of scales that is calibrated again has the same path."""
    file = tmp_path / "scales.json"
    config = with_images(mm_encoder_fp8_scale_path=str(file))
    shapes = [SHAPE, msgspec.structs.replace(SHAPE, scales=scales_of(config.model_config))]
    for scales in ("{}", "[1.5]"):
        file.write_text(scales)
        shapes.append(msgspec.structs.replace(SHAPE, scales=scales_of(config.model_config)))
    file.unlink()
    assert len({digest(config, shape=shape) for shape in shapes}) == len(shapes)


def test_a_method_of_pruning_that_is_not_used_changes_nothing() -> None:
    one, other = (with_images(video_pruning_rate=None, video_pruning_method=name) for name in ("evs", "vidcom2"))
    assert digest(one) == digest(other)


def test_groups_layouts_backends_salts_and_weights_have_separate_namespaces() -> None:
    config = vllm_config()
    digests = [
        digest(config),
        digest(config, group(32)),
        digest(config, shape=msgspec.structs.replace(SHAPE, layers=("layers.0", "layers.2"))),
        digest(config, shape=msgspec.structs.replace(SHAPE, formats=("kv_quant_mode 1",))),
        digest(config, shape=msgspec.structs.replace(SHAPE, context=ContextShare(0, 2))),
        digest(config, shape=msgspec.structs.replace(SHAPE, context=ContextShare(1, 2))),
        digest(config, shape=msgspec.structs.replace(SHAPE, context=ContextShare(1, 2, interleave=16))),
        digest(config, shape=SHAPE.of_blocks(2)),
        digest(config, shape=SHAPE.of_blocks(3)),
        digest(config, shape=msgspec.structs.replace(SHAPE, backends=("flash",))),
        digest(config, shape=msgspec.structs.replace(SHAPE, backends=("another",))),
        digest(config, salt="mine"),
        digest(config, identity=ModelIdentity("other weights", "org/model")),
    ]
    assert len(set(digests)) == len(digests)


def test_workers_and_scheduler_derive_one_namespace_of_layers_of_several_formats() -> None:
    """vLLM gives its scheduler the specification of the first layer only."""
    layers = {f"layers.{at}": SimpleNamespace(block_size=16, kv_quant_mode=at) for at in range(2)}
    worker, scheduler = group(), group()
    worker.kv_cache_spec, scheduler.kv_cache_spec = UniformTypeKVCacheSpecs(16, layers), layers["layers.0"]
    shape = msgspec.structs.replace(SHAPE, formats=formats_of(worker.kv_cache_spec))
    assert digest(vllm_config(), worker, shape) == digest(vllm_config(), scheduler, shape)


def test_the_formats_of_a_group_are_those_of_its_layers() -> None:
    one = SimpleNamespace(kv_quant_mode=1)
    other = SimpleNamespace(kv_quant_mode=2)
    groups = [
        one,
        other,
        UniformTypeKVCacheSpecs(16, {"a": one, "b": other}),
        UniformTypeKVCacheSpecs(16, {"a": other, "b": one}),
    ]
    assert len({formats_of(spec) for spec in groups}) == 4
    assert formats_of(UniformTypeKVCacheSpecs(16, {"a": one, "b": one})) == formats_of(one)


def test_backends_are_identified_by_their_classes() -> None:
    """One shape may have different meanings in two backends. Only layers that exist have a backend."""
    config = vllm_config()
    layer = SimpleNamespace(get_attn_backend=lambda: Config)
    config.compilation_config = SimpleNamespace(static_forward_context={"layers.0": layer, "layers.1": layer})
    assert backends_of(config, group()) == (f"{Config.__module__}.Config",)
    config.compilation_config = SimpleNamespace(static_forward_context={})
    assert backends_of(config, group()) == ()


def test_the_hash_seed_is_part_of_the_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    one = digest(vllm_config())
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    assert digest(vllm_config()) != one


def test_paths_names_and_library_versions_do_not_change_the_namespace() -> None:
    one, other = vllm_config(), vllm_config("/another/place")
    other.model_config.revision, other.model_config.hf_config._commit_hash = "main", "abc"
    other.model_config.hf_config._name_or_path = "elsewhere"
    other.model_config.hf_config.transformers_version = "6.0"
    one.model_config.hf_config.text_config = {"_name_or_path": "here"}
    other.model_config.hf_config.text_config = {"_name_or_path": "there"}
    assert digest(one) == digest(other, identity=ModelIdentity(MODEL.weights, "another name"))


def test_what_loading_a_model_writes_into_its_settings_is_read_where_it_comes_from() -> None:
    """Llama 4: only workers load the model. Engines that generate in another way have other pages."""
    scheduler, worker, other = vllm_config(), vllm_config(), vllm_config()
    worker.model_config.hf_config.attn_temperature_tuning = True
    for config in (scheduler, worker):
        config.model_config.try_get_generation_config = lambda: {"attn_temperature_tuning": True}
    assert digest(scheduler) == digest(worker) != digest(other)
    worker.model_config.override_generation_config = {"attn_temperature_tuning": False}
    assert digest(worker) == digest(other)


def test_adapters_are_not_shared_between_engines() -> None:
    space = namespace_of(vllm_config(), group(), SHAPE, MODEL, "")
    adapters = [
        SimpleNamespace(lora_name=name, lora_path=path, lora_int_id=number)
        for name, path, number in [("a", "/one", 1), ("a", "/two", 1), ("a", "/one", 2), ("b", "/one", 1)]
    ]
    names = [private_name(engine, adapter) for adapter in adapters for engine in ("x", "y")]
    digests = [with_adapter(space, name).digest for name in names]
    assert len({space.digest, *digests}) == 9
    assert with_adapter(space, private_name("x", adapters[0])).digest == digests[0]


# --- Counters


def test_counts_are_returned_once() -> None:
    tally = ConnectorCounters()
    tally.hit(LoadedTokens(100, 60, 30))
    tally.hit(LoadedTokens(10, 10))
    tally.add("failed_loads", 0)
    counts = tally.taken()
    assert counts == {"memory_tokens": 70, "disk_tokens": 10, "remote_tokens": 30} and counts.keys() <= HELP.keys()
    assert tally.taken() == {}


@pytest.mark.parametrize(
    ("role", "mode", "loads", "stores"),
    [
        ("kv_both", "both", True, True),
        ("kv_both", "save_only", False, True),
        ("kv_both", "load_only", True, False),
        ("kv_producer", "both", False, True),
        ("kv_producer", "save_only", False, True),
        ("kv_consumer", "both", True, False),
    ],
)
def test_role_and_mode_say_whether_pages_are_loaded_and_stored(role: str, mode: str, loads: bool, stores: bool) -> None:
    assert directions_of(transfer_of(role), read_settings({"mode": mode})) == Directions(loads, stores)


@pytest.mark.parametrize(("role", "mode"), [("kv_producer", "load_only"), ("kv_consumer", "save_only")])
def test_a_mode_that_leaves_nothing_to_do_is_rejected(role: str, mode: str) -> None:
    with pytest.raises(ValueError, match=f'"mode": "{mode}".*"kv_role": "{role}"'):
        directions_of(transfer_of(role), read_settings({"mode": mode}))


def transfer_of(role: str) -> SimpleNamespace:
    producer, consumer = role != "kv_consumer", role != "kv_producer"
    return SimpleNamespace(kv_role=role, is_kv_producer=producer, is_kv_consumer=consumer)


@pytest.mark.parametrize(
    ("device", "groups", "zeroes", "config", "zeroing"),
    [
        ("cuda:0", 2, True, {"use_v2_model_runner": True}, Zeroing.BEFORE_STORES_END),
        ("cuda:0", 2, True, {"use_v2_model_runner": False}, Zeroing.AFTER_STORES_END),
        ("cuda:0", 2, True, {}, Zeroing.BEFORE_STORES_END),
        ("cuda:0", 2, False, {"use_v2_model_runner": True}, Zeroing.AFTER_STORES_END),
        ("cuda:0", 1, True, {"use_v2_model_runner": True}, Zeroing.AFTER_STORES_END),
        ("cpu", 2, True, {"use_v2_model_runner": True}, Zeroing.AFTER_STORES_END),
    ],
)
def test_only_vllms_v2_model_runner_zeroes_blocks_before_stores_end(
    device: str, groups: int, zeroes: bool, config: dict[str, bool], zeroing: Zeroing
) -> None:
    rank_groups: Any = [SimpleNamespace(cache=SimpleNamespace(cache=SimpleNamespace(device=device)))]
    kv_cache = SimpleNamespace(needs_kv_cache_zeroing=zeroes, kv_cache_groups=[None] * groups)
    assert setup._zeroing(SimpleNamespace(**config), rank_groups, kv_cache) is zeroing
