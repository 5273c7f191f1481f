"""What distinguishes SGLang's pages besides their tokens: the weights of a draft model, and the format of a pool."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagetier.client.engines.file_digests import FileDigests, digest_of_setting
from pagetier.client.engines.sglang.engine.namespace import EngineFacts, namespace_of, weights_sources
from pagetier.client.engines.sglang.engine.served_engine import ServedEngine
from pagetier.client.engines.sglang.pools.device_pools import variants_of
from pagetier.client.engines.weights import ModelIdentity, identify
from pagetier.client.groups import FullAttention


def model(folder: Path, weights: bytes) -> Any:
    """Returns SGLang's ModelConfig of a model in a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return SimpleNamespace(model_path=str(folder), revision=None, hf_config=SimpleNamespace())


def identity(target: Any, draft: Any, tmp_path: Path) -> str:
    server = SimpleNamespace(load_format="auto", download_dir=None)
    sources = weights_sources(EngineFacts("0", target, server, draft), "", 2**62)
    return identify(sources, FileDigests(tmp_path / "digests"))


def test_the_weights_of_a_draft_model_are_a_part_of_the_identity(tmp_path: Path) -> None:
    target, one, other = (model(tmp_path / name, name.encode()) for name in ("target", "one", "other"))
    identities = [identity(target, draft, tmp_path) for draft in (None, one, other)]
    assert len(set(identities)) == 3
    assert identity(target, one, tmp_path) == identities[1]


def test_drafts_in_the_checkpoint_of_the_model_need_no_identity_of_their_own(tmp_path: Path) -> None:
    target = model(tmp_path / "target", b"weights")
    again = SimpleNamespace(**vars(target))
    assert identity(target, again, tmp_path) == identity(target, None, tmp_path)


class MHATokenToKVPool:
    pass


class DeepSeekV4IndexerPool:
    index_k_page8 = use_fp4_indexer = False


class DeepSeekV4SingleKVPool:
    kv_layout = SimpleNamespace(value="v4")


@pytest.mark.parametrize("setting", ["index_k_page8", "use_fp4_indexer"])
def test_settings_of_a_pool_are_a_part_of_its_format(setting: str) -> None:
    plain, other = DeepSeekV4IndexerPool(), DeepSeekV4IndexerPool()
    setattr(other, setting, True)
    assert variants_of([plain]) != variants_of([other])
    assert variants_of([plain, [None, plain]]) == variants_of([plain])


def test_the_layout_of_rows_is_a_part_of_their_format() -> None:
    new = DeepSeekV4SingleKVPool()
    new.kv_layout = SimpleNamespace(value="v41")
    assert variants_of([DeepSeekV4SingleKVPool()]) == ("DeepSeekV4SingleKVPool kv_layout=v4",)
    assert variants_of([new]) == ("DeepSeekV4SingleKVPool kv_layout=v41",)


def test_plain_pools_need_no_format() -> None:
    """Their pages are found under the names that they had in earlier builds."""
    assert variants_of([MHATokenToKVPool()]) == ()


def test_the_log_says_which_page_size_fills_frames() -> None:
    def engine_of(page: int, topk: int | None = None) -> ServedEngine:
        group, paged = (
            SimpleNamespace(kind=FullAttention(page)),
            SimpleNamespace(page=SimpleNamespace(nbytes=page * 57344)),
        )
        state = SimpleNamespace(page=SimpleNamespace(nbytes=1 << 20))
        pools: Any = [SimpleNamespace(name="kv", group=group), SimpleNamespace(name="mamba", group=group)]
        model = SimpleNamespace(hf_config=SimpleNamespace(index_topk=topk))
        return ServedEngine(EngineFacts("0", model, None, None), pools, [paged, state])  # type: ignore[list-item]

    assert engine_of(1)._waste == " that fill 5% of their frames: --page-size 128 fills 100%"
    assert engine_of(64)._waste == engine_of(128)._waste == ""
    assert engine_of(1, topk=2048)._waste == "", "SGLang sets the pages of sparse attention itself"


# --- Settings that change the state


class Config:
    architectures = ("Model",)

    def to_dict(self) -> dict[str, Any]:
        return {"layers": 2}


def digest(dtype: str = "bfloat16", stored: str = "bfloat16", scales: str = "", **server: Any) -> bytes:
    """Returns the namespace of an engine whose server has these settings, beside those that SGLang gives it."""
    config = Config()
    model = SimpleNamespace(hf_config=config, hf_text_config=config, dtype=dtype, context_len=4096, quantization=None)
    usual = {"kv_cache_dtype": "auto", "load_format": "auto", "model_loader_extra_config": "{}", "kt_method": "AMXINT4"}
    facts = EngineFacts("0", model, SimpleNamespace(**(usual | server)), scales=scales)
    group = SimpleNamespace(kind=FullAttention(16))
    pool: Any = SimpleNamespace(name="kv", pool=SimpleNamespace(dtype=stored), group=group, layers={}, variants=())
    paged: Any = SimpleNamespace(page=SimpleNamespace(layout="page-1"))
    return namespace_of(facts, pool, paged, ModelIdentity("weights"), "").digest


@pytest.mark.parametrize(
    "setting",
    [
        {"load_format": "dummy"},
        {"load_format": SimpleNamespace(value="dummy")},
        {"speculative_draft_load_format": "dummy"},
        {"model_loader_extra_config": '{"adapter": "name"}'},
        {"kt_weight_path": "experts"},
        {"kt_method": "AMXINT8"},
        {"modelopt_quant": "fp8"},
        {"dllm_algorithm": "LowConfidence"},
        {"modelopt_checkpoint_restore_path": "checkpoint"},
        {"enable_precise_embedding_interpolation": True},
        {"enable_decoder_swa_bounded_replay": True},
    ],
    ids=str,
)
def test_a_setting_that_changes_the_state_changes_the_namespace(setting: dict[str, Any]) -> None:
    assert digest(**setting) != digest()


@pytest.mark.parametrize("value", [None, False])
def test_usual_settings_leave_the_namespace_as_it_was(value: object) -> None:
    assert digest(enable_decoder_swa_bounded_replay=value, kt_weight_path=None) == digest()


def test_the_type_of_computing_is_a_part_of_the_name_of_quantised_pages() -> None:
    stored = [digest(dtype, "float8_e4m3fn") for dtype in ("bfloat16", "float16")]
    assert stored[0] != stored[1]


def test_the_scales_of_a_cache_are_those_of_their_file(tmp_path: Path) -> None:
    names = [""]
    for name, content in (("one", b"1"), ("copy", b"1"), ("other", b"2")):
        (tmp_path / name).write_bytes(content)
        names.append(digest_of_setting(str(tmp_path / name)))
    assert digest_of_setting(None) == "" and str(tmp_path) in digest_of_setting(str(tmp_path))  # SGLang starts, too
    digests = [digest(scales=scales) for scales in names]
    assert digests[1] == digests[2] and len(set(digests)) == 3
