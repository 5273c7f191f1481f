"""Tests engines of two ranks, and engines that guess tokens by n-grams or with a draft model."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tiny_model
from one_host import MODELS, REPORTS_FAILURES, ask, ask_after_reset, distance, exact, prompt, scene_of, texts
from vllm_engine import VllmEngine

RANKS = {"tensor_parallel_size": 2}
DRAFTS = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}
ANSWER = 281  # the last of its computed tokens completes a page
ROUNDING = 0.05
DRAFT_MODELS = {"draft_model": "llama", "eagle": "eagle", "eagle3": "eagle3", "mtp": ""}
"""The draft model of each method; MTP is a layer of the model itself."""


def test_engines_of_one_rank_and_of_two_share_pages() -> None:
    for_one, for_two = prompt(70), prompt(71)
    with scene_of("llama") as scene, scene.engine() as one, scene.engine(engine=RANKS) as two:
        stored_by_one, stored_by_two = ask(one, for_one), ask(two, for_two)
        scene.settle()
        assert exact(ask_after_reset(two, for_two)) == exact(ask(two, for_two)), "two ranks load other bytes"
        for stored, loaded in ((stored_by_one, ask(two, for_one)), (stored_by_two, ask(one, for_two))):
            assert loaded["external"] == scene.hit()
            assert texts(loaded) == texts(stored)
            assert distance(loaded, stored) < ROUNDING
        assert list(Path(two.folder.name).glob("vllm_dist_*")), "vLLM leaves its files outside of the engine's folder"


def test_an_answer_with_drafts_is_stored() -> None:
    pytest.importorskip("numba", reason="vLLM's n-grams need it")
    question = prompt(72, 100) * 3  # n-grams that repeat, so that vLLM accepts drafts
    with scene_of("llama") as scene, scene.engine(engine=DRAFTS) as engine, scene.engine() as other:
        first = ask(engine, question, tokens=ANSWER)
        drafted = engine.do("metrics")
        assert drafted["vllm:spec_decode_num_draft_tokens"] > drafted["vllm:spec_decode_num_accepted_tokens"] > 0
        further = [*question, *texts(first)[0], *prompt(73, 20)]
        scene.settle()
        loaded = ask(other, further)
        assert loaded["external"] == scene.hit(len(question) + ANSWER)
        computed = ask(engine, further)  # the beginning is in its own prefix cache
        assert texts(loaded) == texts(computed)
        assert distance(loaded, computed) < ROUNDING
        assert exact(ask_after_reset(engine, further)) == exact(ask(engine, further))


def drafts_by(method: str, seed: int = 0) -> dict[str, Any]:
    name = DRAFT_MODELS[method]
    model = {"model": str(tiny_model.make(name, MODELS, seed))} if name else {}
    return {"speculative_config": {"method": method, "num_speculative_tokens": 2, **model}}


def accepted(engine: VllmEngine) -> int:
    return int(engine.do("metrics")["vllm:spec_decode_num_accepted_tokens"])


@pytest.mark.skipif(not REPORTS_FAILURES, reason="tested from 0.30 on")
@pytest.mark.parametrize("method", DRAFT_MODELS)
def test_state_of_a_draft_model_is_cached(method: str) -> None:
    """The answers are those without a hit, and as many guesses are accepted."""
    question = prompt(74)
    model = "llama" if DRAFT_MODELS[method] else "glm4_moe"
    with scene_of(model) as scene, scene.engine(engine=drafts_by(method)) as engine:
        computed = ask(engine, question, tokens=ANSWER)
        before = accepted(engine)
        assert method != "draft_model" or before > ANSWER // 2, "a model that drafts for itself is right"
        scene.settle()
        loaded = ask_after_reset(engine, question, tokens=ANSWER)
        assert loaded["external"] == scene.hit()
        assert texts(loaded) == texts(computed)
        assert distance(loaded, computed) < ROUNDING
        assert accepted(engine) == 2 * before
        further = [*question, *texts(loaded)[0], *prompt(75, 20)]
        scene.settle()
        assert ask_after_reset(engine, further)["external"] == scene.hit(len(question) + ANSWER)


def test_engines_with_other_draft_models_share_no_pages() -> None:
    question = prompt(76)
    settings = [{}, drafts_by("eagle"), drafts_by("eagle", seed=1)]
    with scene_of("llama") as scene, ExitStack() as running:
        engines = [running.enter_context(scene.engine(engine=one)) for one in settings]
        answers = [ask(engine, question) for engine in engines]
        scene.settle()
        assert [texts(answer) for answer in answers] == [texts(answers[0])] * 3
        assert [answer["external"] for answer in answers] == [0, 0, 0]
        assert ask_after_reset(engines[-1], question)["external"] == scene.hit()
