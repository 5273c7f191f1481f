"""What is not cached in a pipeline: each line of the table, from pagetier's log or as SGLang's exception."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.arg_groups import deepseek_v4_hook

import sglang_imports  # noqa: F401  before SGLang
import sglang_parallel
from disk_daemon import DiskDaemon
from sglang_engine import SglangEngine
from sglang_model import Spec, computed, write_config
from sglang_parallel import NOT_IN_PIPELINES, PIPELINES

pytest_plugins = ("sglang_daemon",)


@pytest.mark.parametrize("algorithm", ["DSPARK", "EAGLE"])
def test_a_draft_without_mtp_layers_is_refused_in_each_stage(
    daemon: DiskDaemon, tmp_path: Path, algorithm: str
) -> None:
    """The pools of a draft model of its own are in the last stage only; the others have to store nothing."""
    spec = PIPELINES.hicache[0]
    flags = {"speculative_algorithm": algorithm, "speculative_draft_model_path": str(write_config(tmp_path, spec))}
    with SglangEngine(spec, daemon.socket, flags=flags) as engine:
        line = NOT_IN_PIPELINES["drafts other than EAGLE with MTP layers"]
        assert engine.log.count(f"pagetier caches nothing: {line}") == spec.processes, engine.log


def test_pools_that_are_not_known_are_refused_in_each_stage(daemon: DiskDaemon) -> None:
    """SGLang has no pipelines of DeepSeek V4.1, but the pools are those of a stage."""
    spec = Spec("dsv4.1", 256, stages=2, layout="page_first")
    with SglangEngine(spec, daemon.socket) as engine:
        line = "of HiCache are not known: use the linker, without --pp-size"
        assert engine.log.count(line) == spec.processes, engine.log


def test_a_stage_without_compressed_layers_says_so(daemon: DiskDaemon) -> None:
    """SGLang compares the stages, so that none of them loads anything."""
    spec = Spec("dsv4", 256, stages=2, layout="page_first", layers=(1, 4))
    with SglangEngine(spec, daemon.socket) as engine:
        line = NOT_IN_PIPELINES["DeepSeek V4, if a stage has windows alone"]
        assert engine.log.count(f"pagetier caches nothing: {line}") == 1, engine.log
        engine.insert(1, 2)
        engine.reset_with_host()
        assert engine.restore(1, 2) == computed(spec)


def test_sglang_refuses_minimax_m3(daemon: DiskDaemon) -> None:
    """Once this fails, SGLang has it in a pipeline, and so may pagetier."""
    with pytest.raises(AssertionError, match=re.escape(NOT_IN_PIPELINES["MiniMax-M3"])):
        SglangEngine(Spec("minimax-m3", 16, stages=2, layout="page_first"), daemon.socket)


def test_sglang_refuses_deepseek_v41(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of settings that SGLang supports, the stages are what it refuses."""
    settings: dict[str, Any] = dict.fromkeys(
        ("dsv4_attn_backend", "enable_encoder_swa_bounded_replay", "speculative_algorithm", "enable_hisparse")
    )
    more = {"enable_two_batch_overlap": False, "pp_size": 2}
    model = SimpleNamespace(hf_config=SimpleNamespace(model_type="deepseek_v41"))
    monkeypatch.setattr(deepseek_v4_hook, "resolving_view", lambda _: SimpleNamespace(**settings, **more))
    monkeypatch.setattr(deepseek_v4_hook, "model_config_of", lambda _: model)
    with pytest.raises(ValueError, match=NOT_IN_PIPELINES["DeepSeek V4.1"]):
        deepseek_v4_hook.validate_deepseek_v41_features(None)


def test_the_document_has_the_table() -> None:
    assert sglang_parallel.not_in_pipelines() in (Path(__file__).parents[2] / "docs" / "models.md").read_text()
