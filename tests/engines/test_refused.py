"""Settings that are wrong are refused at the start, and the log says which."""

from __future__ import annotations

from typing import Any

import pytest

from one_host import TELLS_FAILURES, ask, ask_anew, exact, prompt, scene_of
from vllm_engine import EngineEndedError

POLICY = 'kv_load_failure_policy is "fail"'


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"transfer": {"kv_load_failure_policy": "fail"}}, POLICY),
        ({"extra": {"sokcet": "/run/pagetier"}}, "sokcet"),
    ],
    ids=["policy", "key"],
)
def test_a_wrong_setting(settings: dict[str, Any], said: str) -> None:
    with scene_of("llama") as scene:
        engine = scene.engine(**settings)
        try:
            with pytest.raises(EngineEndedError):
                engine.ready()
            lines = [line for line in engine.log.read_text().splitlines() if "ValueError" in line and said in line]
            assert lines, engine.told()
        finally:
            engine.stop()


@pytest.mark.skipif(TELLS_FAILURES, reason="from 0.30 on hybrid models are cached")
def test_a_model_that_is_not_cached_is_computed_and_a_line_says_why() -> None:
    with scene_of("gemma3") as scene, scene.engine() as engine:
        told = ask(engine, prompt(1))
        assert exact(ask_anew(engine, prompt(1))) == exact(told)
        assert engine.do("metrics").get("vllm:external_prefix_cache_hits", 0) == 0
        assert "pagetier caches nothing: models with several groups of layers need vLLM 0.30" in engine.log.read_text()
