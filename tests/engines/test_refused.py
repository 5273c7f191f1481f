"""Settings that are wrong are refused at the start, and the log says which."""

from __future__ import annotations

from typing import Any

import pytest

from one_host import scene_of
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
