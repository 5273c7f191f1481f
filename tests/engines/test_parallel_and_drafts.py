"""Tests engines of two ranks, and engines that guess tokens by n-grams."""

from __future__ import annotations

from pathlib import Path

import pytest

from one_host import ask, ask_after_reset, distance, exact, prompt, scene_of, texts

RANKS = {"tensor_parallel_size": 2}
DRAFTS = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}
ANSWER = 281  # the last of its computed tokens completes a page
ROUNDING = 0.05


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
