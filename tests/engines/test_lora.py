"""Tests LoRA adapters: engines share pages of the same adapter, and never those of another one with its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny_model
from one_host import MODELS, Scene, exact, prompt, scene_of, texts
from vllm_engine import VllmEngine

LORA = {"enable_lora": True, "max_lora_rank": 8}


def answer(engine: VllmEngine, adapter: Path | str, question: list[int]) -> dict[str, Any]:
    return engine.do("generate", prompts=[question], adapter=str(adapter))


def test_engines_share_pages_of_the_same_adapter_only() -> None:
    """From 0.32 on vLLM's hashes contain the name and the path of an adapter, so that both must be equal."""
    one, other = (tiny_model.make("adapter", MODELS, seed) for seed in (1, 2))
    with scene_of("llama") as scene, scene.engine(engine=LORA) as first, scene.engine(engine=LORA) as second:
        for engine in (first, second):
            answer(engine, one, [7, 8])  # from now on its files are read
        assert any(is_shared(scene, first, second, one, prompt(number)) for number in range(80, 85))
        assert answer(second, other, prompt(80))["external"] == 0


def is_shared(scene: Scene, first: VllmEngine, second: VllmEngine, adapter: Path, question: list[int]) -> bool:
    """Returns whether the second engine loads what the first has stored; not before both have read the files."""
    computed, plain = answer(first, adapter, question), answer(first, "", question)
    assert texts(plain) != texts(computed), "the adapter changes nothing"
    assert plain["external"] == 0
    own = answer(first, adapter, question)
    scene.settle()
    loaded = answer(second, adapter, question)
    assert loaded["external"] == 0 or exact(loaded) == exact(own)
    return bool(loaded["external"] == scene.hit())
