"""Tests that invalid settings are rejected at start, and that the log names them."""

from __future__ import annotations

import pytest

from one_host import REPORTS_FAILURES, ask, ask_after_reset, exact, prompt, scene_of, texts
from vllm_engine import EngineEndedError


def test_an_invalid_setting_is_named_in_the_log() -> None:
    with scene_of("llama") as scene:
        engine = scene.engine(extra={"sokcet": "/run/pagetier"})
        try:
            with pytest.raises(EngineEndedError):
                engine.ready()
            lines = [line for line in engine.log.read_text().splitlines() if "ValueError" in line and "sokcet" in line]
            assert lines, engine.log_tail()
        finally:
            engine.stop()


@pytest.mark.skipif(REPORTS_FAILURES, reason="from 0.30 on hybrid models are cached")
def test_an_unsupported_model_is_computed_and_the_log_has_the_reason() -> None:
    with scene_of("gemma3") as scene, scene.engine() as engine:
        result = ask(engine, prompt(1))
        assert exact(ask_after_reset(engine, prompt(1))) == exact(result)
        assert engine.do("metrics").get("vllm:external_prefix_cache_hits", 0) == 0
        assert "pagetier caches nothing: models with several groups of layers need vLLM 0.30" in engine.log.read_text()


@pytest.mark.skipif(not REPORTS_FAILURES, reason="tested from 0.30 on")
def test_unsupported_drafts_are_computed_and_one_line_says_what_to_do() -> None:
    drafts = {"method": "custom_class", "model": "engine_commands.NoDrafts", "num_speculative_tokens": 2}
    with scene_of("llama") as scene, scene.engine(engine={"speculative_config": drafts}) as engine:
        result = ask(engine, prompt(1))
        assert texts(ask_after_reset(engine, prompt(1))) == texts(result)
        assert engine.do("metrics").get("vllm:external_prefix_cache_hits", 0) == 0
        lines = [line for line in engine.log.read_text().splitlines() if "pagetier caches nothing" in line]
        assert len(lines) == 1 and "name another method in --speculative-config" in lines[0], lines
        assert not [slot for slot in scene.daemon.slots() if slot.name != "disk tier"], "an engine without pages"
