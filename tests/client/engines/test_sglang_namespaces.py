"""What distinguishes SGLang's pages besides their tokens: the weights of a draft model, and the format of a pool."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagetier.client.engines.file_digests import FileDigests
from pagetier.client.engines.sglang.engine.namespace import EngineFacts, weights_sources
from pagetier.client.engines.sglang.engine.served_engine import ServedEngine
from pagetier.client.engines.sglang.pools.device_pools import variants_of
from pagetier.client.engines.weights import identify
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
