"""Compares answers of further families of models bit by bit with those from vLLM's own prefix cache.

Where it has none, those of all ways are compared with each other.

Two engines of each model run, one after the other: a start is what such a test costs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("vllm.v1.kv_cache_layout", reason="tested from 0.32 on")

from vllm.engine.arg_utils import EngineArgs

from market_models import MODELS, MarketModel, make_torchvision
from one_host import TOKENS, Scene, ask, ask_after_reset, exact, prompt, scene_of, texts
from pagetier.client.engines.vllm.settings import ConnectorSettings
from pagetier.client.engines.vllm.setup import is_switched_off
from vllm_engine import VllmEngine

PROMPT = prompt(1)
MEMORY, FRESH, DISK, KILLED, NEXT = WAYS = (
    *("from memory", "in a fresh engine", "from disk"),
    *("after the daemon was killed", "with the next daemon"),
)


class Answer(NamedTuple):
    """An answer, and the tokens that pagetier loaded for it from memory and from disk."""

    result: dict[str, Any]
    memory: int
    disk: int


class Scenario:
    """The answers of two engines in the order of WAYS. `own` is from vLLM's own cache, if it has one."""

    def __init__(self, model: MarketModel, scene: Scene, environment: dict[str, str]) -> None:
        self._scene, self.model = scene, model
        self.hit = (TOKENS - 1) // model.page * model.page
        self.answers: dict[str, Answer] = {}
        arguments, extra = {"block_size": 128, **model.engine}, dict(model.extra)
        with scene.engine(engine=arguments, extra=extra, environment=environment) as engine:
            ask(engine, PROMPT)
            scene.settle()
            self.own = ask(engine, PROMPT)
            self._ask(MEMORY, engine)
        with scene.engine(engine=arguments, extra=extra, environment=environment) as engine:
            self._ask(FRESH, engine)
            self._end_daemons(engine)

    def _end_daemons(self, engine: VllmEngine) -> None:
        self._scene.evict_to_disk()
        self._ask(DISK, engine)
        self._scene.daemon.kill()
        self._ask(KILLED, engine)
        self._scene.daemon.open()
        assert self._scene.attached(engine)
        self._ask(NEXT, engine)

    def _ask(self, way: str, engine: VllmEngine) -> None:
        before = _tokens(engine)
        result = ask_after_reset(engine, PROMPT)
        memory, disk = (after - one for after, one in zip(_tokens(engine), before, strict=True))
        self.answers[way] = Answer(result, memory, disk)


def _tokens(engine: VllmEngine) -> tuple[int, int]:
    metrics = engine.do("metrics")
    return metrics["vllm:pagetier_memory_tokens"], metrics["vllm:pagetier_disk_tokens"]


@pytest.fixture(scope="module")
def with_torchvision(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = make_torchvision(tmp_path_factory.mktemp("torchvision"))
    return {"PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(folder))))}


def compared() -> list[str]:
    """Returns the models to compare: with AMX vLLM gives latents other blocks than is expected here."""
    return [name for name, model in MODELS.items() if model.has_own_cache or not torch.cpu._is_amx_tile_supported()]


@pytest.fixture(scope="module", params=compared())
def scenario(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, with_torchvision: dict[str, str]
) -> Iterator[Scenario]:
    name, model = request.param, MODELS[request.param]
    folder = model.recipe(tmp_path_factory.mktemp(name))
    with scene_of(name, model=folder) as scene:
        yield Scenario(model, scene, with_torchvision if name.startswith("qwen3_5") else {})


def test_the_reference_is_from_vllms_own_cache(scenario: Scenario) -> None:
    assert scenario.own["external"] == (0 if scenario.model.has_own_cache else scenario.hit)
    assert scenario.own["answers"][0]["cached"] == scenario.hit >= 768
    assert len(set(texts(scenario.own)[0])) > 2


@pytest.mark.parametrize("way", WAYS)
def test_answers_are_bit_equal_with_as_many_cached_tokens(way: str, scenario: Scenario) -> None:
    answer = scenario.answers[way]
    assert exact(answer.result) == exact(scenario.own)
    assert answer.result["external"] == answer.result["answers"][0]["cached"] == scenario.hit
    assert (answer.disk if way == DISK else answer.memory) == scenario.hit


@pytest.mark.skipif(torch.cpu._is_amx_tile_supported(), reason="with AMX vLLM has a prefix cache for latents")
@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if not model.has_own_cache])
def test_vllm_itself_has_no_prefix_cache_for_latents_on_a_cpu(name: str, tmp_path: Path) -> None:
    folder = MODELS[name].recipe(tmp_path)
    config = EngineArgs(model=str(folder), skip_tokenizer_init=True, enable_prefix_caching=True).create_engine_config()
    assert config.cache_config.enable_prefix_caching is False
    assert is_switched_off(config, ConnectorSettings())
