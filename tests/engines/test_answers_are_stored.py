"""Tests that answers are stored, too: the tokens of an answer are the beginning of the next prompt."""

from __future__ import annotations

import pytest

from one_host import ask, ask_after_reset, chosen, distance, exact, prompt, scene_of, texts

ANSWER = 281  # the last of its computed tokens completes a page
ROUNDING = 0.05


@pytest.mark.parametrize("name", chosen())
def test_a_prompt_that_continues_an_answer_hits_its_pages(name: str) -> None:
    question = prompt(60)
    with scene_of(name) as scene, scene.engine() as engine:
        answer = texts(ask(engine, question, tokens=ANSWER))[0]
        further = [*question, *answer, *prompt(61, 20)]
        own = ask(engine, further)
        scene.settle()
        result = ask_after_reset(engine, further)
        assert result["external"] == result["answers"][0]["cached"] > len(question)
        assert result["external"] == scene.hit(len(question) + ANSWER)
        assert texts(result) == texts(own)
        if own["answers"][0]["cached"] == result["external"]:
            assert exact(result) == exact(own)
        assert distance(result, own) < ROUNDING
        assert exact(ask(engine, further)) == exact(result)
        assert exact(ask_after_reset(engine, further)) == exact(result)
