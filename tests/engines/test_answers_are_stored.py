"""Tests that answers are stored, too: the tokens of an answer are the beginning of the next prompt."""

from __future__ import annotations

from typing import Any

import pytest

from one_host import ask, ask_after_reset, chosen, distance, exact, prompt, scene_of, texts
from vllm_engine import VllmEngine

ANSWER, MORE = 281, 8  # the last of the answer's computed tokens completes a page
ROUNDING = 0.05


def computed(engine: VllmEngine, question: list[int]) -> dict[str, Any]:
    """Returns what follows an answer when the engine continues to compute. No other request has this salt."""
    (whole,) = engine.do("generate", prompts=[question], tokens=ANSWER + MORE, salt="alone")["answers"]
    return {"answers": [{name: whole[name][ANSWER:] for name in ("tokens", "logprobs")}]}


@pytest.mark.parametrize("name", chosen())
def test_a_prompt_that_continues_an_answer_hits_its_pages(name: str) -> None:
    """What is computed again as a prompt differs by rounding from what was computed token by token."""
    question = prompt(60)
    with scene_of(name) as scene, scene.engine() as engine:
        expected = computed(engine, question)
        answer = texts(ask(engine, question, tokens=ANSWER))[0]
        scene.settle()
        further = [*question, *answer]
        result = ask_after_reset(engine, further)
        assert result["external"] == result["answers"][0]["cached"] == scene.hit(len(question) + ANSWER) > len(question)
        assert texts(result) == texts(expected)
        assert distance(result, expected) < ROUNDING
        assert exact(ask(engine, further)) == exact(result)
        assert exact(ask_after_reset(engine, further)) == exact(result)
